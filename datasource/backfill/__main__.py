"""`backfill`, the command for whoever looks after a stream; also `python -m backfill`."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Final

from backfill.command.display import Window, drawn
from backfill.command.dropping import WHERE_LOST, drop
from backfill.command.examining import examined
from backfill.command.pace import PaceMeter
from backfill.command.requests import ask_again, ask_to_stop, require_batches
from backfill.command.status import as_json, lag_of, status
from backfill.command.words import CONTROLS, read
from backfill.control import Control
from backfill.errors import BackfillError, OptionsError, StateError
from backfill.options import parse
from backfill.state_dir.control_file import changing, keep_control, read_control
from backfill.state_dir.files import STATE_FILE
from backfill.upstream import DELTA
from backfill_state import StateStoreError

WATCH_INTERVAL: Final = 1.0


class OutputError(Exception):
    """The output of a command cannot be written, because of `error`."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def run() -> int:
    """Runs `main` as a process of its own. SIGTERM ends it as Ctrl-C does, or temporary files would stay behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if sys.stdout is not None:
        return main()
    # Standard output is closed, as by `>&-`. The command is carried out all the same, and nobody wants its output.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        return main()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 1 after an error, which is printed on stderr, or where `doctor` finds
    that a stream would be refused.

    An interrupted command has the status that a shell would give it, 130 or 141; but `status --watch`, which is meant
    to be ended so, has 0.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # A table may have a name that the terminal cannot show.
    given = read(arguments)
    is_endless = given.command == "status" and given.watch
    try:
        exit_status = _RUN[given.command](given)
    except KeyboardInterrupt:
        return 0 if is_endless else 130
    except OutputError as unsaid:
        if isinstance(unsaid.error, BrokenPipeError):
            return 0 if is_endless else 141
        print(f"backfill: the output cannot be written: {unsaid.error}", file=sys.stderr)  # noqa: T201
        return 1
    except (BackfillError, StateStoreError) as error:
        print(f"backfill: {error}", file=sys.stderr)  # noqa: T201 - a command-line tool
        return 1
    return exit_status or 0


def _set_control(given: argparse.Namespace) -> None:
    folder = _folder_of(given)
    with changing(folder):
        _folder_of(given)  # While another `backfill` had the lock, the stream may have been dropped.
        before = read_control(folder)
        control = _changed(before, given)
        if control.holds_up_more(before):
            require_batches(folder)
        keep_control(folder, control)
    _print(f"from the next batch on: {control.summary() or 'the snapshot is read without a throttle'}")


def _changed(control: Control, given: argparse.Namespace) -> Control:
    match given.command:
        case "pause":
            return control.paused_too()
        case "resume":
            return control.resumed()
    return control.throttled(given.rows)


def _again(given: argparse.Namespace) -> None:
    folder = _folder_of(given)
    if given.stop and (given.first or given.last):
        raise OptionsError("--stop ends all requests; leave out --from and --to")
    _print(ask_to_stop(folder) if given.stop else ask_again(folder, given.first, given.last))


def _doctor(given: argparse.Namespace) -> int:
    further = dict(given.option)
    named = {"url": given.url, "dbtable": given.dbtable, "path": given.path, "user": given.user}
    named = {name: value for name, value in named.items() if value}
    # The options of a stream need a stateDir, which is not looked at here.
    options = parse({"stateDir": "/stateDir", **further, **named}, streaming=True)
    findings = examined(options)
    for finding in findings:
        _print(f"{'refused' if finding.refuses else 'note'}: {finding.what}")
        if finding.mend:
            _print(f"    {finding.mend};")
    refuses = any(finding.refuses for finding in findings)
    _print(f"{options.dbtable or options.path}: a stream would {'be refused' if refuses else 'begin'}")
    return int(refuses)


def _folder_of(given: argparse.Namespace) -> Path:
    folder = Path(given.state_dir).absolute()
    try:
        (folder / STATE_FILE).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise StateError(
            f"there is no {STATE_FILE} in {folder}; expected the stateDir of a stream"
            + (f". {WHERE_LOST}" if given.command == "drop" else "")
        ) from None
    except OSError as error:
        raise StateError(
            f"stateDir {folder} cannot be read ({error.strerror}); run this command with the account of the query's "
            "driver"
        ) from error
    return folder


def _status(given: argparse.Namespace) -> None:
    watching = PaceMeter()
    live = given.watch and not given.json and sys.stdout.isatty()
    while True:
        now = status(Path(given.state_dir))
        if given.url or now.upstream == DELTA:
            lag, unreachable = lag_of(now, given.url, given.user)
            now = replace(now, lag=lag, unreachable=unreachable)
        at = watching.pace(now, time.monotonic())
        text = json.dumps(as_json(now, at)) if given.json else drawn(now, at, _window(), time.time())
        # Goes to the corner, clears each line behind its text, then all below: so nothing flickers.
        _print("\x1b[H" + text.replace("\n", "\x1b[K\n") + "\x1b[K\x1b[J" if live else text)
        if not given.watch:
            return
        time.sleep(WATCH_INTERVAL)


def _window() -> Window:
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    return Window(shutil.get_terminal_size().columns, coloured, plain)


def _print(text: str) -> None:
    try:
        print(text, flush=True)  # noqa: T201 - a command-line tool
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Else Python writes what is left, and fails.
        raise OutputError(error) from error


def _drop(given: argparse.Namespace) -> None:
    for sentence in drop(_folder_of(given), staging_dir=given.staging_dir, url=given.url, user=given.user):
        _print(sentence)


_RUN: Final[Mapping[str, Callable[[argparse.Namespace], int | None]]] = {
    "drop": _drop,
    "status": _status,
    **dict.fromkeys(CONTROLS, _set_control),
    "re-backfill": _again,
    "doctor": _doctor,
}


if __name__ == "__main__":
    sys.exit(run())
