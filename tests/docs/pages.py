"""The pages of the documentation: the README, and those in `docs/`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]

PAGES: Final = {path: path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}

README: Final = PAGES[ROOT / "README.md"]


def chapter(heading: str) -> str:
    """Returns the text under this heading, or page title, up to the next heading; exactly one page has it."""
    chapters = [part for page in PAGES.values() for part in re.split(r"^## ", page, flags=re.MULTILINE)]
    (text,) = [part for part in chapters if part.removeprefix("# ").startswith(heading + "\n")]
    return text
