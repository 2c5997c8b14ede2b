"""`backfill`, the command for whoever looks after a stream; also `python -m backfill`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from backfill.errors import BackfillError, StateError
from backfill.opening import STATE_FILE, open_store, open_upstream
from backfill.options import parse
from backfill.staging import Staging
from backfill_state import StateStoreError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status, 1 for an error that was said on stderr."""
    given = _parser().parse_args(arguments)
    try:
        _drop(given)
    except (BackfillError, StateStoreError) as error:
        print(f"backfill: {error}", file=sys.stderr)  # noqa: T201 - a command-line tool
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="backfill", description="Look after streams of the backfill source.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    drop = commands.add_parser(
        "drop",
        help="end a stream for good",
        description="Drops the stream's replication slot and publication, and removes its progress and staged chunks. "
        "Stop the query first. The password comes from PGPASSWORD, a passfile or a service file.",
    )
    drop.add_argument("--state-dir", required=True, help="the stream's stateDir")
    drop.add_argument("--staging-dir", default="", help="the stream's stagingDir, if it had one of its own")
    drop.add_argument("--url", required=True, help="the database, as in the stream's option url")
    drop.add_argument("--user", default="", help="the role to connect as")
    return parser


def _drop(given: argparse.Namespace) -> None:
    folder = Path(given.state_dir).absolute()
    if not (folder / STATE_FILE).exists():
        raise StateError(f"there is no {STATE_FILE} in {folder}; expected the stateDir of a stream")
    with open_store(str(folder)) as store:
        identity = store.identity()
    if identity is None:
        raise StateError(f"{folder / STATE_FILE} holds no stream; nothing was dropped")
    options = parse(
        {
            "url": given.url,
            "user": given.user,
            "dbtable": identity.table,
            "stateDir": str(folder),
            "stagingDir": given.staging_dir,
        }
    )
    upstream = open_upstream(options)
    try:
        upstream.detach(identity.properties)
    finally:
        upstream.close()
    Staging(options.staging_dir).of_stream(identity.stream_id).forget_all()
    with open_store(str(folder)) as store:
        store.reset()
    for left in (folder / STATE_FILE, folder / f"{STATE_FILE}.wal"):
        left.unlink(missing_ok=True)
    names = ", ".join(f"{name} {text}" for name, text in identity.properties if name in ("slot", "publication"))
    print(f"dropped stream {identity.stream_id} of {identity.table}: {names}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
