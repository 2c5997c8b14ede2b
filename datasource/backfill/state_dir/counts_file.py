"""`counts.json` in stateDir: what a stream has counted, for other processes and for the stream's next one.

It is read and written while the stream runs, so a failure of that is only logged (`counts`): nothing depends on it.
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
