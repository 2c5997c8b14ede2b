"""The system's temporary folder, for what does not fit into memory, and what to do where it takes nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from backfill.errors import StagingError


@contextmanager
def explaining_temporary_folder(what: str) -> Iterator[None]:
    """Raises an OSError of the body as StagingError: `what`, such as "rows cannot be kept", with the way out."""
    try:
        yield
    except OSError as error:
        folder = f" {tempfile.tempdir}" if tempfile.tempdir else ""  # None is known where none can be written.
        raise StagingError(
            f"{what} in the temporary folder{folder} ({error}). Make room there, or name another folder in the "
            "environment variable TMPDIR"
        ) from error
