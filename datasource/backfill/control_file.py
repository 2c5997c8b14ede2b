"""The file by which another process controls a stream: `control.json` in its stateDir.

Not in the state store, which the stream has locked whenever it writes. The file is replaced as a whole, so who reads
it meets all of one version; it is read before each batch, and stays over restarts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from backfill.claim import held
from backfill.control import Control
from backfill.errors import StateBusyError, StateError
from backfill.wording import unusable

FILE: Final = "control.json"
LOCK: Final = "control.lock"
PATIENCE: Final = 10.0
"""Seconds after which whoever has it is taken for one that hangs."""


def read_control(folder: Path) -> Control:
    """What the stream with this stateDir has been told; nothing, where there is no file."""
    try:
        text = (folder / FILE).read_bytes()
    except FileNotFoundError:
        return Control()
    except OSError as error:
        # Not as good as none: the stream may have been told to pause.
        raise StateError(unusable(str(folder / FILE), "read", error)) from error
    return Control.from_text(text)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """One process at a time reads the file and replaces it: of what two of them tell, nothing is lost."""
    try:
        # The other one has a few files to read and one to write.
        file = held(folder / LOCK, patience=PATIENCE, interval=0.01)
    except OSError as error:
        raise StateError(unusable(str(folder / LOCK), "written", error)) from error
    if file is None:
        raise StateBusyError(f"another `backfill` has had {folder / LOCK} for {PATIENCE:.0f} s; end that one")
    with file:
        # Somebody else may want it next, as after `sudo backfill`; who may not write to a file cannot lock it.
        with suppress(OSError):  # It is somebody else's, who has seen to that.
            (folder / LOCK).chmod(0o666)
        yield


def keep_control(folder: Path, control: Control) -> None:
    """Durable when it returns."""
    part = ""
    try:
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix=f".{FILE}.", encoding="utf-8", delete=False) as file:
            part = file.name
            file.write(control.to_text())
            file.flush()
            os.fsync(file.fileno())
        # The driver may run as somebody else, and may read what is in stateDir.
        Path(part).chmod(0o644)
        Path(part).replace(folder / FILE)
    except OSError as error:
        if part:
            Path(part).unlink(missing_ok=True)
        raise StateError(unusable(str(folder / FILE), "written", error)) from error
