"""The file by which another process controls a stream: `control.json` in its stateDir.

It is not in the state store, because the stream locks that whenever it writes. The file is replaced as a whole, so a
reader always sees one complete version. The stream reads it before each batch; it stays when the stream is restarted.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from backfill.control import Control
from backfill.durable import sync_names
from backfill.errors import StateBusyError, StateError
from backfill.state_dir.file_lock import hold
from backfill.wording import unusable

FILE: Final = "control.json"
LOCK: Final = "control.lock"
PATIENCE: Final = 10.0
"""Seconds after which a process that has the lock is taken for one that hangs."""


def read_control(folder: Path) -> Control:
    """What the stream with this stateDir has been told; nothing, where there is no file."""
    try:
        text = (folder / FILE).read_bytes()
    except FileNotFoundError:
        return Control()
    except OSError as error:
        # Not the same as no file: the stream may have been told to pause.
        raise StateError(unusable(str(folder / FILE), "read", error)) from error
    return Control.from_text(text)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Only one process at a time reads the file and replaces it, so that of two commands neither is lost."""
    try:
        # The other one has a few files to read and one to write.
        file = hold(folder / LOCK, patience=PATIENCE, interval=0.01)
    except OSError as error:
        raise StateError(unusable(str(folder / LOCK), "written", error)) from error
    if file is None:
        raise StateBusyError(f"another `backfill` command has held {folder / LOCK} for {PATIENCE:.0f} s; end it")
    with file:
        # Another account may need the lock next, as after `sudo backfill`, and to lock a file it must be able to write.
        with suppress(OSError):  # The file is another account's, which has done this already.
            (folder / LOCK).chmod(0o666)
        yield


def keep_control(folder: Path, control: Control) -> None:
    """Replaces the file. It is durable when this returns, and so is its name where the file system can do that."""
    part = ""
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f".{FILE}.", encoding="utf-8", delete=False) as file:
            part = file.name
            file.write(control.to_text())
            file.flush()
            os.fsync(file.fileno())
        # The driver may run as another account, which may read what is in stateDir. On a volume whose files are all one
        # account's, whoever makes them, only that one may change this; the volume says who may read them.
        with suppress(OSError):
            Path(part).chmod(0o644)
        Path(part).replace(folder / FILE)
    except OSError as error:
        raise StateError(unusable(str(folder / FILE), "written", error)) from error
    finally:
        if part:
            Path(part).unlink(missing_ok=True)
    # Else a machine that loses power within seconds may come back with the file before: paused, say, no longer.
    sync_names(folder)
