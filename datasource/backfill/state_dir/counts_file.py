"""`counts.json` in stateDir: what a stream has counted, for other processes and for the next one of its own.

Read and written while the stream runs, so a failure to do so is only said (`counts`): nothing depends on the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from backfill.counts import Counts

FILE: Final = "counts.json"


def read_counts(folder: Path) -> Counts | None:
    """What the stream with this stateDir has counted; None where that is not known."""
    try:
        return Counts.from_text((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None


def keep_counts(folder: Path, counts: Counts) -> None:
    """Replaces the file as a whole, so that whoever reads it meets one version. The stream is its only writer.

    Raises OSError where it cannot be written.
    """
    part = folder / f".{FILE}.part"
    part.write_text(counts.to_text(), encoding="utf-8")
    part.replace(folder / FILE)
