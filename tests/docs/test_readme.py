"""What the README says of options and columns is what the code says."""

from __future__ import annotations

from pathlib import Path

from backfill.options import OPTIONS
from backfill.rows import METADATA, UNCHANGED_COLUMNS

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_readme_lists_every_option_with_its_default_and_meaning() -> None:
    rows = []
    for option in OPTIONS:
        default = "required" if option.default is None else f"`{option.default}`" if option.default else ""
        rows.append(f"| `{option.name}` | {default} | {option.meaning} |")
    assert "\n".join(["| option | default | meaning |", "|---|---|---|", *rows, ""]) in README


def test_the_readme_lists_the_metadata_columns_in_their_order() -> None:
    places = [README.index(f"| `{name}` |") for name in (*METADATA.names, UNCHANGED_COLUMNS)]
    assert places == sorted(places)
