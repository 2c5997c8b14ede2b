"""The command's words: what may follow `backfill`, and what `--help` says of it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final, TypeAlias

from backfill.options import MOST_ROWS
from backfill.options.texts import whole

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - it has no other name

CONTROLS: Final = {
    "pause": (
        "hold the snapshot, while changes go on flowing",
        "Holds the reading of the table from the next batch on, also over restarts. Changes go on flowing.",
    ),
    "resume": (
        "go on with the snapshot after pause",
        "Goes on with reading the table from the next batch on. A throttle stays, unless it was 0.",
    ),
    "throttle": (
        "limit how many snapshot rows a batch reads",
        "Limits how many rows of the table a batch reads, from the next batch on. Changes are not limited.",
    ),
}
"""The commands that control the snapshot: what each does, in short and in full."""


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for: `command` and its options. Ends the process, as `argparse` does, where that is wrong."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="backfill", description="Look after streams of the backfill source.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for add in (_add_drop, _add_status, _add_control, _add_again, _add_doctor):
        add(commands)
    return parser


def _add_drop(commands: _Commands) -> None:
    drop = commands.add_parser(
        "drop",
        help="end a stream for good",
        description="Drops the stream's replication slot and publication, and removes its progress and staged chunks. "
        "Stop the query first. The password comes from PGPASSWORD, a passfile or a service file.",
    )
    drop.add_argument("--state-dir", required=True, help="the stream's stateDir")
    drop.add_argument("--staging-dir", default="", help="the stream's stagingDir, if it had one of its own")
    drop.add_argument(
        "--url",
        default="",
        help="the database, as in the stream's option url; not for a Delta table, or a snapshot alone",
    )
    drop.add_argument("--user", default="", help="the role to connect as")


def _add_status(commands: _Commands) -> None:
    status = commands.add_parser(
        "status",
        help="show where a stream is",
        description="Shows where a stream is, running or stopped: how many rows it has read, and which of its vnodes "
        "(slices of the key space) are completed, in progress and not started. The stream does not notice. With --url "
        "also how far it is behind the database, and how much log its slot makes the database keep.",
    )
    status.add_argument("--state-dir", required=True, help="the stream's stateDir")
    status.add_argument("--url", default="", help="the database, as in the stream's option url")
    status.add_argument("--user", default="", help="the role to connect as")
    status.add_argument("--watch", action="store_true", help="look again each second, with rate and time left")
    status.add_argument("--json", action="store_true", help="for programs: a line of JSON for each look")


def _add_control(commands: _Commands) -> None:
    for name, (short, long) in CONTROLS.items():
        command = commands.add_parser(
            name,
            help=short,
            description=f"{long} Not for a stream with startupMode=snapshot, which is one batch.",
        )
        if name == "throttle":
            command.add_argument(
                "rows",
                type=_rows,
                metavar="ROWS",
                help="a whole number; 0 holds the snapshot, off takes the limit away",
            )
        command.add_argument("--state-dir", required=True, help="the stream's stateDir")


def _add_again(commands: _Commands) -> None:
    again = commands.add_parser(
        "re-backfill",
        aliases=["rebackfill"],
        help="read a table or a range of its keys again, while changes go on flowing",
        description=(
            "Reads the rows from one key to another (both included) again, and emits them once more, as 'insert' "
            "with _is_snapshot. They are the rows as of then, and come after all earlier changes to them; a row that "
            "is deleted meanwhile is not among them. Without --from and --to, the whole table is read. A stopped "
            "stream does it when it is started again; several requests are carried out one after the other, after "
            "the first backfill. Not for a stream with orderColumn."
        ),
    )
    again.set_defaults(command="re-backfill")
    again.add_argument("--state-dir", required=True, help="the stream's stateDir")
    for name, which in (("from", "first"), ("to", "last")):
        again.add_argument(
            f"--{name}",
            dest=which,
            action="extend",
            nargs="+",
            metavar="KEY",
            help=(
                f"the {which} key, as the database writes it: a value for each key column, one after the other, or as "
                f"--{name}=… --{name}=… for values that begin with a dash"
            ),
        )
    again.add_argument("--stop", action="store_true", help="end all requests to read rows again")


def _add_doctor(commands: _Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="look at a table before a stream is started",
        description=(
            "Looks for what would keep a stream of this table from beginning, or surprise it later: the server's "
            "settings, free slots, rights, key, replica identity, types, partitions. Prints each with the SQL that "
            "mends it. Changes nothing. The exit status is 1 if a stream would be refused."
        ),
    )
    doctor.add_argument("--url", default="", help="the database, as in the stream's option url")
    doctor.add_argument("--dbtable", default="", help="the table, as in the stream's option dbtable")
    doctor.add_argument("--path", default="", help="instead of these two, a Delta table, with --option keyColumns=…")
    doctor.add_argument("--user", default="", help="the role to connect as")
    doctor.add_argument(
        "--option",
        action="append",
        type=_option,
        default=[],
        metavar="NAME=VALUE",
        help="a further option of the stream, such as columns=id,total; may be repeated",
    )


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
