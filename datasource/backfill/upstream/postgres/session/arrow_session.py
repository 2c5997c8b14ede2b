"""A session whose results are Arrow: ADBC's low-level interface, as far as it is needed here.

Not ADBC's DB-API. That imports pyarrow.dataset, and with it pandas where it is installed: 0.35 s for a process that has
no other use of it, such as one that only looks up or reads a table. And the readers it hands out raise Arrow's errors,
without a SQLSTATE (apache/arrow-adbc issue 1523); the one used here raises the driver's own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import lru_cache
from typing import Any, Final

import adbc_driver_postgresql
import pyarrow as pa
from adbc_driver_manager import (
    INGEST_OPTION_MODE,
    INGEST_OPTION_MODE_CREATE,
    INGEST_OPTION_TARGET_TABLE,
    AdbcConnection,
    AdbcDatabase,
    AdbcStatement,
    StatementOptions,
)
from adbc_driver_manager._reader import AdbcRecordBatchReader

from backfill.errors import OptionsError

OLDEST_DRIVER: Final = (1, 13)
"""Earlier drivers do not know `_KNOWN_TYPES`, and ingest a null in an array of texts as an empty text; and before 1.11
they end the whole process, by std::terminate, where a connection is lost before a statement.
"""

BATCH_BYTES: Final = adbc_driver_postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value
USE_COPY: Final = adbc_driver_postgresql.StatementOptions.USE_COPY.value
_KNOWN_TYPES: Final = "adbc.postgresql.type_resolver_mode"


def require_driver(installed: str) -> None:
    """Raises OptionsError where this release of adbc-driver-postgresql cannot be used."""
    numbers = re.match(r"(\d+)\.(\d+)", installed)  # A build of one's own may be "0+unknown".
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST_DRIVER:
        raise OptionsError(
            f"adbc-driver-postgresql is {installed}, which writes nulls in arrays as empty texts, and before 1.11 "
            f"ends the whole process when a connection is lost; expected {'.'.join(map(str, OLDEST_DRIVER))} or "
            "newer. Run pip install --upgrade adbc-driver-postgresql on the driver and on every executor"
        )


def sent_as(field: pa.Field[Any]) -> str:
    """What the server calls the type of a result's column; "" where the driver does not tell."""
    return (field.metadata or {}).get(b"POSTGRESQL:type", b"").decode()


class ArrowSession:
    """One session, in autocommit, for one thread at a time. Everything raises `adbc_driver_manager.Error`."""

    def __init__(self, conninfo: str) -> None:
        require_driver(adbc_driver_postgresql.__version__)
        self._connection = AdbcConnection(_database(conninfo))
        self.opened_at: Final = time.monotonic()
        self.log_of: tuple[str, str] | None = None
        """System and timeline of the log that it reads, once known: a primary remains one while a session lasts."""
        self._reading = ExitStack()
        self._rows: Iterator[tuple[Any, ...]] = iter(())

    def close(self) -> None:
        """Closes the session, also in the midst of a result whose reader somebody may still hold."""
        self._reading.close()
        self._connection.close()

    def read(self, statement: str, *, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """The statement's rows as they arrive, in batches of about the given number of bytes; one result at a time."""
        with self._reading as open_ones:
            prepared = open_ones.enter_context(closing(AdbcStatement(self._connection)))
            prepared.set_options(**{BATCH_BYTES: str(batch_bytes)})
            yield from open_ones.enter_context(_started(prepared, statement))

    def execute(self, statement: str) -> None:
        """Executes a statement with no rows or few, which `fetchone` and `fetchall` give until the next one."""
        with closing(AdbcStatement(self._connection)) as prepared:
            # COPY takes three round trips, of which two are to find out that a statement cannot be copied from.
            prepared.set_options(**{USE_COPY: "false"})
            with _started(prepared, statement) as reader:
                columns = [column.to_pylist() for column in reader.read_all().columns]
        self._rows = zip(*columns, strict=True)

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)

    def carry_out(self, statement: str) -> None:
        """Executes a statement whose rows, if it has any, nobody wants: the driver need not know their types."""
        with closing(AdbcStatement(self._connection)) as prepared:
            prepared.set_sql_query(statement)
            prepared.execute_update()

    def ingest(self, name: str, rows: pa.Table) -> None:
        """Makes a temporary table of this name, with these columns and rows, by COPY."""
        options = {
            INGEST_OPTION_TARGET_TABLE: name,
            INGEST_OPTION_MODE: INGEST_OPTION_MODE_CREATE,
            StatementOptions.INGEST_TEMPORARY.value: "true",
        }
        with closing(AdbcStatement(self._connection)) as statement:
            statement.set_options(**options)
            statement.bind_stream(rows)
            statement.execute_update()


@lru_cache(maxsize=16)
def _database(conninfo: str) -> AdbcDatabase:
    """What the driver knows of a database: the server's version, for which it opens a session of its own.

    Everything that is asked for comes in types that are built into the server. To know others the driver would have to
    read all columns of all tables and the catalogs, which takes each process 60 ms in an empty database and seconds in
    one of ten thousand tables (apache/arrow-adbc issue 1755).
    """
    database: AdbcDatabase = adbc_driver_postgresql.connect(conninfo, db_kwargs={_KNOWN_TYPES: "builtin"})
    return database


def _started(prepared: AdbcStatement, statement: str) -> AdbcRecordBatchReader:
    prepared.set_sql_query(statement)
    stream, _ = prepared.execute_query()
    return AdbcRecordBatchReader._import_from_c(stream.address)  # noqa: SLF001
