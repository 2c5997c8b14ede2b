"""`backfill`, the command for whoever looks after a stream; also `python -m backfill`."""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from backfill.adapters import examine, open_upstream, source_of
from backfill.command.display import Window, drawn
from backfill.command.requests import ask_again, ask_to_stop, require_batches
from backfill.command.status import as_json, lag_of, status
from backfill.command.watching import Watching
from backfill.control import Control
from backfill.errors import BackfillError, OptionsError, StateError
from backfill.opening import open_store, remove_state_files
from backfill.options import MOST_ROWS, Options, parse
from backfill.options.texts import whole
from backfill.rows import RowFormat
from backfill.staging import Staging
from backfill.state_dir.claim import claim
from backfill.state_dir.control_file import changing, keep_control, read_control
from backfill.state_dir.record import has_place
from backfill.state_dir.recorded import STATE_FILE
from backfill.upstream import DELTA
from backfill.upstream.findings import Finding, refused
from backfill.whole_rows.telling import require_order
from backfill_state import StateStoreError

WATCH_INTERVAL: Final = 1.0
PATIENCE: Final = 10.0
"""Seconds for which the database may be out of reach."""


class UnsaidError(Exception):
    """What a command says cannot be written, because of this error."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status: 1 after an error, which is printed on stderr, or where `doctor` finds
    that a stream would be refused.

    For a command that is interrupted it is what a shell would say, 130 or 141; but 0 for `status --watch`, which is
    ended so.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # A table may have a name that the terminal cannot show.
    given = _parser().parse_args(arguments)
    is_endless = given.run is _status and given.watch
    try:
        exit_status: int | None = given.run(given)
    except KeyboardInterrupt:
        return 0 if is_endless else 130
    except UnsaidError as unsaid:
        if isinstance(unsaid.error, BrokenPipeError):
            return 0 if is_endless else 141
        print(f"backfill: what there is to say cannot be written: {unsaid.error}", file=sys.stderr)  # noqa: T201
        return 1
    except (BackfillError, StateStoreError) as error:
        print(f"backfill: {error}", file=sys.stderr)  # noqa: T201 - a command-line tool
        return 1
    return exit_status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="backfill", description="Look after streams of the backfill source.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    drop = commands.add_parser(
        "drop",
        help="end a stream for good",
        description="Drops the stream's replication slot and publication, and removes its progress and staged chunks. "
        "Stop the query first. The password comes from PGPASSWORD, a passfile or a service file.",
    )
    drop.set_defaults(run=_drop)
    drop.add_argument("--state-dir", required=True, help="the stream's stateDir")
    drop.add_argument("--staging-dir", default="", help="the stream's stagingDir, if it had one of its own")
    drop.add_argument(
        "--url",
        default="",
        help="the database, as in the stream's option url; not for a Delta table, or a snapshot alone",
    )
    drop.add_argument("--user", default="", help="the role to connect as")
    status = commands.add_parser(
        "status",
        help="show where a stream is",
        description="Shows where a stream is, running or stopped: how many rows it has read, and which of its vnodes "
        "(slices of the key space) are completed, in progress and not started. The stream does not notice. With --url "
        "also how far it is behind the database, and how much log its slot makes the database keep.",
    )
    status.set_defaults(run=_status)
    status.add_argument("--state-dir", required=True, help="the stream's stateDir")
    status.add_argument("--url", default="", help="the database, as in the stream's option url")
    status.add_argument("--user", default="", help="the role to connect as")
    status.add_argument("--watch", action="store_true", help="look again each second, with rate and time left")
    status.add_argument("--json", action="store_true", help="for programs: a line of JSON for each look")
    _add_control(commands)
    again = commands.add_parser(
        "re-backfill",
        aliases=["rebackfill"],
        help="read a table or a range of its keys again, while changes go on flowing",
        description="Has the rows from one key to another, both included, read again and emitted once more, as "
        "'insert' with _is_snapshot. They stand for the rows as they are by then, and come after all earlier changes "
        "to them; a row that is deleted meanwhile is not among them. Without --from and --to it is the whole table. A "
        "stream that is stopped does it when it is started again; several requests are carried out one after the "
        "other, after the first backfill. Not for a stream with orderColumn.",
    )
    again.set_defaults(run=_again)
    again.add_argument("--state-dir", required=True, help="the stream's stateDir")
    for name, which in (("from", "first"), ("to", "last")):
        again.add_argument(
            f"--{name}",
            dest=which,
            action="extend",
            nargs="+",
            metavar="KEY",
            help=f"the {which} key, as the database writes it: a value for each column of the key, one after the other "
            f"or as --{name}=… --{name}=…, which takes those that begin with a dash",
        )
    again.add_argument("--stop", action="store_true", help="read no rows again any more: an end to all requests")
    doctor = commands.add_parser(
        "doctor",
        help="look at a table before a stream is started",
        description="Looks for what would refuse a stream over a table, or surprise it later: the server's settings, "
        "free slots, rights, key, replica identity, types, partitions. Prints each with the SQL that mends it. Changes "
        "nothing. The exit status is 1 where a stream would be refused.",
    )
    doctor.set_defaults(run=_doctor)
    doctor.add_argument("--url", default="", help="the database, as in the stream's option url")
    doctor.add_argument("--dbtable", default="", help="the table, as in the stream's option dbtable")
    doctor.add_argument("--path", default="", help="in place of these two a Delta table, with --option keyColumns=…")
    doctor.add_argument("--user", default="", help="the role to connect as")
    doctor.add_argument(
        "--option",
        action="append",
        type=_option,
        default=[],
        metavar="NAME=VALUE",
        help="a further option of the stream, such as columns=id,total; may be repeated",
    )
    return parser


def _add_control(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands that control the snapshot: each maps what the stream has been told to what it is told now."""
    told: dict[str, tuple[str, str, Callable[[Control, argparse.Namespace], Control]]] = {
        "pause": (
            "hold the snapshot, while changes go on flowing",
            "Holds the reading of the table from the next batch on, also over restarts. Changes go on flowing.",
            lambda control, _: control.paused_too(),
        ),
        "resume": (
            "go on with the snapshot after pause",
            "Goes on with reading the table from the next batch on. A throttle stays, unless it was 0.",
            lambda control, _: control.resumed(),
        ),
        "throttle": (
            "limit how many snapshot rows a batch reads",
            "Limits how many rows of the table a batch reads, from the next batch on. Changes are not limited.",
            lambda control, given: control.throttled(given.rows),
        ),
    }
    for name, (short, long, change) in told.items():
        command = commands.add_parser(
            name,
            help=short,
            description=f"{long} Not for a stream with startupMode=snapshot, which is one batch.",
        )
        command.set_defaults(run=_tell, change=change)
        if name == "throttle":
            command.add_argument(
                "rows",
                type=_rows,
                metavar="ROWS",
                help="a whole number; 0 holds the snapshot, off takes the limit away",
            )
        command.add_argument("--state-dir", required=True, help="the stream's stateDir")


def _rows(text: str) -> int | None:
    if text == "off":
        return None
    rows = whole(text)
    if rows is None or rows > MOST_ROWS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number from 0 to {MOST_ROWS} nor off")
    return rows


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as columns=id,total")
    return name, value


def _tell(given: argparse.Namespace) -> None:
    folder = _folder_of(given)
    with changing(folder):
        before = read_control(folder)
        control: Control = given.change(before, given)
        if control.holds_up_more(before):
            require_batches(str(folder))
        keep_control(folder, control)
    _say(f"from the next batch on: {control.told() or 'the snapshot is read without a limit of its own'}")


def _again(given: argparse.Namespace) -> None:
    folder = str(_folder_of(given))
    if given.stop and (given.first or given.last):
        raise OptionsError("--stop ends all requests; leave out --from and --to")
    _say(ask_to_stop(folder) if given.stop else ask_again(folder, given.first, given.last))


def _doctor(given: argparse.Namespace) -> int:
    further = dict(given.option)
    named = {"url": given.url, "dbtable": given.dbtable, "path": given.path, "user": given.user}
    named = {name: value for name, value in named.items() if value}
    # A stream needs a folder, which is not looked at here.
    options = parse({"stateDir": "/stateDir", **further, **named}, streaming=True)
    # What refuses a stream goes first.
    findings = sorted((*examine(options), *_of_columns(options)), key=lambda item: not item.refuses)
    for finding in findings:
        _say(f"{'refused' if finding.refuses else 'note'}: {finding.what}")
        if finding.mend:
            _say(f"    {finding.mend};")
    refuses = any(finding.refuses for finding in findings)
    _say(f"{options.dbtable or options.path}: a stream would {'be refused' if refuses else 'begin'}")
    return int(refuses)


def _of_columns(options: Options) -> Iterator[Finding]:
    """What a table has to keep to in whatever database it is."""
    try:
        with closing(open_upstream(options, patience=0.0)) as upstream:
            table = upstream.schema()
    except BackfillError:
        return  # which is among the other findings
    yield from refused(RowFormat, table, options.stream.mark_unchanged, options.stream.metadata)
    if options.stream.order_column:
        yield from refused(require_order, table, options.stream.order_column)


def _folder_of(given: argparse.Namespace) -> Path:
    folder = Path(given.state_dir).absolute()
    try:
        (folder / STATE_FILE).stat()
    except (FileNotFoundError, NotADirectoryError):
        lost = (
            ". Where that is lost, start the query, which rebuilds it from the checkpoint, and stop it; or run in its "
            "PostgreSQL database SELECT pg_drop_replication_slot('backfill_…'); DROP PUBLICATION backfill_…"
        )
        raise StateError(
            f"there is no {STATE_FILE} in {folder}; expected the stateDir of a stream"
            + (lost if given.command == "drop" else "")
        ) from None
    except OSError as error:
        raise StateError(
            f"stateDir {folder} cannot be looked into ({error.strerror}); run this as the account of the query's driver"
        ) from error
    return folder


def _status(given: argparse.Namespace) -> None:
    watching = Watching()
    live = given.watch and not given.json and sys.stdout.isatty()
    while True:
        now = status(given.state_dir)
        if given.url or now.upstream == DELTA:
            lag, unreachable = lag_of(now, given.url, given.user)
            now = replace(now, lag=lag, unreachable=unreachable)
        at = watching.pace(now, time.monotonic())
        text = json.dumps(as_json(now, at)) if given.json else drawn(now, at, _window(), time.time())
        # To the corner, then each line to its end and what is left below: so that nothing flickers.
        _say("\x1b[H" + text.replace("\n", "\x1b[K\n") + "\x1b[K\x1b[J" if live else text)
        if not given.watch:
            return
        time.sleep(WATCH_INTERVAL)


def _window() -> Window:
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    plain = not (sys.stdout.encoding or "").lower().startswith("utf")
    return Window(shutil.get_terminal_size().columns, coloured, plain)


def _say(text: str) -> None:
    try:
        print(text, flush=True)  # noqa: T201 - a command-line tool
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Else Python writes what is left, and fails.
        raise UnsaidError(error) from error


def _drop(given: argparse.Namespace) -> None:
    folder = _folder_of(given)
    with claim(folder):  # else a running query would lose the slot that it reads from
        _drop_stream(folder, given)


def _drop_stream(folder: Path, given: argparse.Namespace) -> None:
    with open_store(str(folder)) as store:
        identity = store.identity()
    if identity is None:
        raise StateError(f"{folder / STATE_FILE} holds no stream; nothing was dropped")
    placed = has_place(identity.properties)
    if placed and identity.upstream != DELTA and not given.url:
        raise OptionsError(f"drop needs --url, the database of {identity.table}, as in the stream's option url")
    url = given.url or "postgresql://"  # Where nothing is in the database, nobody is asked.
    folders = {"stateDir": str(folder), "stagingDir": given.staging_dir}
    source = source_of(identity.upstream, identity.table, identity.key.names, url=url, user=given.user)
    options = parse({**source, **folders})
    # A stream may have got the option later. It is not known here, and one that is named wrongly is not to leave rows.
    places = dict.fromkeys([options.staging_dir, parse({**source, "stateDir": str(folder)}).staging_dir])
    staged = {place: Staging(place).of_stream(identity.stream_id) for place in places}
    for staging in staged.values():
        staging.manifest(0)  # Where one cannot be opened, nothing is dropped.
    dropped: tuple[str, ...] = ()
    if placed:
        with closing(open_upstream(options, patience=PATIENCE)) as upstream:
            dropped = upstream.detach(identity.properties)
    emptied = [place for place, staging in staged.items() if staging.forget_all()]
    with open_store(str(folder)) as store:
        store.reset()
    remove_state_files(folder)
    named = ", ".join(dropped)
    _say(f"dropped stream {identity.stream_id} of {identity.table}{f': {named}' if named else ''}")
    for place in emptied:
        _say(f"removed its staged chunks from {place}")
    if options.staging_dir not in emptied:
        _say(
            f"found no staged chunks of it in {options.staging_dir}; if it had another stagingDir, remove the folder "
            f"{identity.stream_id} there"
        )


if __name__ == "__main__":
    sys.exit(main())
