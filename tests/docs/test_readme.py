"""The documentation agrees with the code on options, columns and errors, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import backfill.errors
import backfill_state.errors
from backfill.metrics.exposition import Metric
from backfill.options import OPTIONS
from backfill.progress import PHASES
from backfill.reported import SourceReport
from backfill.rows import METADATA, UNCHANGED_COLUMNS
from backfill.spark import prometheus
from tests.docs.pages import PAGES, README, ROOT, chapter


def test_the_readme_lists_every_option_with_its_default_and_meaning() -> None:
    rows = []
    for option in OPTIONS:
        default = f"`{option.default}`" if option.default else ""
        rows.append(f"| `{option.name}` | {default} | {option.meaning} |")
    assert "\n".join(["| option | default | meaning |", "|---|---|---|", *rows, ""]) in README


def test_the_readme_lists_the_metadata_columns_in_their_order() -> None:
    places = [README.index(f"| `{name}` |") for name in (*METADATA.names, UNCHANGED_COLUMNS)]
    assert places == sorted(places)


def test_whoever_is_on_call_finds_every_error_and_every_phase() -> None:
    text = chapter("On call")
    for module in (backfill.errors, backfill_state.errors):
        errors = [name for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, Exception)]
        assert errors
        assert [name for name in errors if f"`{name}`" not in text] == []
    assert [phase for phase in PHASES if f"`phase {phase}" not in text] == []


def test_the_readme_says_what_each_figure_and_metric_is() -> None:
    text = chapter("Watching")
    assert [name for name in SourceReport.__slots__ if f'"{name}":' not in text and f"`{name}`" not in text] == []
    metrics = [found.name for found in vars(prometheus).values() if isinstance(found, Metric)]
    assert metrics
    assert [name for name in metrics if f"`{name.removeprefix('backfill_')}`" not in text] == []


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    for page, text in PAGES.items():
        for link in re.findall(r"\]\(((?!https?:)[^)]+)\)", text):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", PAGES[page], flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_and_every_picture_is_shown() -> None:
    shown = {
        (page.parent / link.partition("#")[0]).resolve()
        for page, text in PAGES.items()
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    }
    assert [path.name for path in (ROOT / "docs").iterdir() if path not in shown] == []
