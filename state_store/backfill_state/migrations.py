"""Format versions: a file written by any older release is brought forward, one version at a time.

    version 1   the tables of `layout`

`STEPS[n - 1]` turns a file of version `n` into one of version `n + 1`, and knows those two versions only: it spells
out its SQL and never calls what `layout` or `duckdb_rows` say today. Each step and the new version number are one
transaction, so that a crash between two steps leaves a file of a version that is known.

To make version 2: write the step, append it, add the line above, and add a golden file of version 2 beside that of
version 1, which is never edited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import duckdb

from backfill_state.errors import StateConflictError, StateDamagedError, StateVersionError

Step: TypeAlias = Callable[[duckdb.DuckDBPyConnection], None]

STEPS: Final[tuple[Step, ...]] = ()
FORMAT_VERSION: Final = 1 + len(STEPS)


def migrate(connection: duckdb.DuckDBPyConnection, path: str, steps: Sequence[Step], table: str) -> None:
    """Brings an open state file to the newest version; a file from a newer release is refused untouched.

    `table` is where the version is kept; each kind of file has its own.
    """
    newest = 1 + len(steps)
    version = stored_version(connection, path, table)
    if version > newest:
        raise StateVersionError(path, f"format version {version}", f"format versions 1 to {newest}")
    for reached, step in enumerate(steps[version - 1 :], start=version + 1):
        connection.begin()
        step(connection)
        connection.execute(f"UPDATE {table} SET version = ?", [reached])
        connection.commit()


def stored_version(connection: duckdb.DuckDBPyConnection, path: str, table: str) -> int:
    """The version an open state file says it has; a DuckDB file that says none is somebody else's."""
    try:
        rows = connection.execute(f"SELECT version FROM {table}").fetchall()
    except (duckdb.CatalogException, duckdb.BinderException) as error:
        # Not damage: nobody must be told to delete a database that is not ours.
        raise StateConflictError(
            f"the file {path}",
            f"this is a DuckDB database, but not one with the state of a stream (it has no table `{table}` with a "
            "column `version`); keep the state elsewhere",
        ) from error
    match rows:
        case [(int(version),)] if version >= 1:
            return version
        case _:
            raise StateDamagedError(path, f"its table `{table}` has no single version but {rows}")
