"""What goes wrong with PostgreSQL, as errors of ours: definite or transient.

They are told apart by SQLSTATE (PostgreSQL manual, appendix A) and by what the statement was about: the words are in
whatever language the server speaks (`lc_messages`). A failure to connect has no SQLSTATE, because libpq reports it
before there is a session; it is transient unless the server named, in English, a reason that stays. What psycopg itself
refuses has none either, and is no failure to connect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeAlias

import adbc_driver_manager
import psycopg

from backfill.errors import (
    BackfillError,
    ConnectionLostError,
    DatabaseSetupError,
    DataLossError,
    SchemaChangedError,
    SlotBusyError,
    SnapshotGoneError,
    TableError,
    TableLockedError,
    ValueOutOfRangeError,
)
from backfill.upstream.postgres.session.connecting import FOR_RECOVERY, without_state
from backfill.wording import FRESH_START

LOCKED: Final = "55P03"
NOT_IN_ENCODING: Final = "22021"
UNTRANSLATABLE: Final = "22P05"
NO_RIGHTS: Final = "42501"
DIVISION_BY_ZERO: Final = "22012"
RAISED: Final = ("P0001", "P0004")
"""What RAISE and ASSERT give, in functions that users have written."""

LIMIT_EXCEEDED: Final = "53400"
TOO_LARGE: Final = "54000"
_NO_TABLE: Final = "42P01"
_NO_COLUMN: Final = "42703"
_UNDEFINED: Final = "42704"
NOT_THERE: Final = frozenset({_NO_TABLE, _NO_COLUMN, _UNDEFINED, "42883"})
"""Something that a statement names is not there: a table, a column, a type or collation, an operator or function."""

_TRANSIENT_CLASSES: Final = ("08", "57P", "40", "53")
_TRANSIENT_STATES: Final = frozenset({"57014", "58000", "58030"})
_OBJECT_IN_USE: Final = "55006"
_NOT_READY: Final = "55000"
_DISK_FULL: Final = "53100"
_INVALID_PARAMETER: Final = "22023"
_NO_FILE: Final = "58P01"
_DATA_EXCEPTION: Final = "22"
"""The class of errors whose message quotes the value that was at fault, which may be a row's key."""

_QUOTED: Final = re.compile(r'["«»„“”「」].*(["«»„“”「」]|$)')
"""From the first quotation mark to the last one, in the languages that PostgreSQL speaks."""

_BYTES: Final = re.compile(r"\b0x[0-9a-f]{2}(?: 0x[0-9a-f]{2})*")
"""The bytes of a text that is not in its encoding: messages do not enclose them in quotation marks."""

_NOT_UTF8: Final = {
    NOT_IN_ENCODING: (
        "a text of the table is not UTF-8; a database with the encoding SQL_ASCII accepts any bytes as text"
    ),
    UNTRANSLATABLE: (
        "a text of the table has a byte that is no character in the database's encoding, as 0x81 in WIN1252, which "
        "accepts any bytes"
    ),
}
"""The words for a text that cannot be sent as UTF-8."""

_TOO_LONG: Final = (
    "the server sends at most a gigabyte at once: one row, or one change with the row before it, in which each byte "
    "of a bytea takes two"
)

_LEFT_OUT: Final = (
    "leave the column out with the option columns. That does not help for a change: a change has all published "
    "columns, and stays in the log as it is. For changes, begin a new stream with a publication of the other "
    "columns: CREATE PUBLICATION p FOR TABLE t (id, …) in PostgreSQL 15 or newer, and publicationName=p. With "
    "REPLICA IDENTITY FULL such a list of columns makes updates and deletes fail, so run ALTER TABLE … REPLICA "
    "IDENTITY DEFAULT first"
)
"""What to do about a value that the server cannot send."""

_OF_THE_SETUP: Final = {
    **dict.fromkeys(
        RAISED,
        "a function in the database raised an error in a statement of the stream, for instance one that filter or "
        "snapshotFilter calls. Its message may quote a row, so it is only in the server's log",
    ),
    NO_RIGHTS: (
        "the database refused a statement: {}. The role lacks a right; backfill doctor, with the options of the "
        "stream, may name it, with the SQL that grants it"
    ),
    DIVISION_BY_ZERO: ("{}: if the option filter or snapshotFilter divides, write NULLIF(divisor, 0)"),
    _DISK_FULL: "the database's disk is full: {}",
    LIMIT_EXCEEDED: (
        "a limit of the server was exceeded: {}. If it is temp_file_limit, let a superuser run ALTER ROLE … SET "
        "temp_file_limit = '100GB', or -1 for none. Temporary files hold the changes of a large transaction, which "
        "is read as a whole, and rows that are sorted, which a smaller maxBytesPerTrigger makes fewer"
    ),
}
"""The words for such an error, with the server's own in place of {} where those quote no row."""

_WHERE_IT_LASTS: Final = {
    "53200": (
        "; if it is out of shared memory, the server has no room for more locks. Each session that reads a "
        "partitioned table takes two for every partition (one for its key's index): let a superuser run ALTER SYSTEM "
        "SET max_locks_per_transaction = 512 and restart the server, or make numPartitions smaller"
    ),
    "40001": FOR_RECOVERY,
}
"""What to do about errors that mostly pass by themselves, where they do not."""

_STATEMENT: Final = re.compile(r"(?<=query) '.*'(?=: )", re.DOTALL)
_PRIMARY: Final = b"PG_DIAG_MESSAGE_PRIMARY"


@dataclass(frozen=True, slots=True)
class Failure:
    """What the server says of an error: the SQLSTATE, and the primary message alone, because details may quote rows."""

    state: str
    message: str
    routine: str | None
    """The function of the server that raised it; only psycopg tells."""

    def is_of(self, kind: Kind) -> bool:
        return self.routine == kind.routine or kind.words in self.message


@dataclass(frozen=True, slots=True)
class Kind:
    """Errors that share their SQLSTATE with others, told apart by the server's routine or by its words in English."""

    routine: str
    words: str


ROWS_HIDDEN: Final = Kind("check_enable_rls", "would be affected by row-level security")
NO_SUCH_LABEL: Final = Kind("enum_in", "invalid input value for enum")
_NO_MEMORY_FOR_ONE: Final = Kind("MemoryContextSizeFailure", "invalid memory alloc request size")

About: TypeAlias = Callable[[Failure], BackfillError | None]
"""What an error means, by what its statement depends on (a snapshot, a slot, …); None to go by the SQLSTATE alone."""


def about_anything(_: Failure) -> None:
    """Goes by the SQLSTATE alone."""


def about_snapshot(failure: Failure) -> BackfillError | None:
    """For statements that need an exported snapshot. If it is gone the server says that the name is not a snapshot's,
    that it does not exist (from version 17 on), or that its owner has gone.
    """
    if failure.state not in (_INVALID_PARAMETER, _UNDEFINED, _NOT_READY):
        return None
    return SnapshotGoneError(
        f"the exported snapshot is gone ({failure.message}): it ended with the driver's session, which may have lost "
        "its connection. Start the query again; the chunk that was cut off is read at a later state. If the batch "
        "was over, read the DataFrame of foreachBatch before the function returns. If only one executor says so "
        "again and again, it reaches another server than the driver does, such as a standby under the same name"
    )


def about_slot(failure: Failure) -> BackfillError | None:
    """For statements that read a slot. One that was dropped does not exist; one that was invalidated cannot be read.

    Up to version 17 it is also an error if the publication did not exist when a change was made. Where `pg_resetwal` or
    somebody has removed a file of the log that the slot keeps, the slot stays; and because the server takes it for
    sound, only a person can drop it so that a stream goes on.
    """
    if failure.state == _NO_FILE:
        return DatabaseSetupError(
            f"the server lacks a file that the slot needs: {failure.message}. If it is a part of the log, as after "
            f"pg_resetwal, its changes are gone: start over with {FRESH_START}; or run SELECT "
            "pg_drop_replication_slot('…') and start the query again with failOnDataLoss=false, to go on without "
            "them"
        )
    if failure.state not in (_UNDEFINED, _NOT_READY):
        return None
    return DataLossError(
        f"the changes after the last batch are gone: {failure.message}. Start over with {FRESH_START}, or start the "
        "query again with failOnDataLoss=false to go on without them"
    )


def about_init_statement(failure: Failure) -> BackfillError | None:
    """For the user's own statement: only the server knows what is wrong with it."""
    may_be_told = (*NOT_THERE, NO_RIGHTS, *RAISED)
    return DatabaseSetupError(failure.message) if failure.state in may_be_told else None


def translated(error: Exception, about: About = about_anything) -> BackfillError:
    """The error as one of ours."""
    state, message = getattr(error, "sqlstate", None), _message(error)
    if not state:
        return without_state(error, message)
    if state.startswith(_DATA_EXCEPTION) and state != _INVALID_PARAMETER:
        message = _BYTES.sub("0x…", _QUOTED.sub('"…"', message))
    routine = getattr(getattr(error, "diag", None), "source_function", None)
    failure = Failure(state, f"{message} ({state})", routine)
    return about(failure) or _by_state(failure)


def _by_state(failure: Failure) -> BackfillError:
    state, message = failure.state, failure.message
    if failure.is_of(ROWS_HIDDEN):
        return _rows_hidden(message)
    if failure.is_of(NO_SUCH_LABEL):
        return _label_gone(message)
    if state == _OBJECT_IN_USE:
        return SlotBusyError(
            f"{message}; another process still reads this slot. Stop the other query, or end that process: each "
            "stream needs its own slot"
        )
    if state == LOCKED:
        return TableLockedError(
            f"{message}: another session holds a lock under which nobody can read the table, as ALTER TABLE, VACUUM "
            "FULL and TRUNCATE do until their transaction ends. SELECT pid, relation::regclass FROM pg_locks WHERE "
            "granted AND mode = 'AccessExclusiveLock' shows which; without a pid it is one of pg_prepared_xacts"
        )
    if state in _NOT_UTF8:
        return ValueOutOfRangeError(f"{message}: {_NOT_UTF8[state]}; mend them, or {_LEFT_OUT}")
    if state == TOO_LARGE or failure.is_of(_NO_MEMORY_FOR_ONE):
        return ValueOutOfRangeError(f"{message}: {_TOO_LONG}; make the values shorter, or {_LEFT_OUT}")
    if state in _OF_THE_SETUP:
        return DatabaseSetupError(_OF_THE_SETUP[state].format(message))
    if state in _TRANSIENT_STATES or state.startswith(_TRANSIENT_CLASSES):
        return ConnectionLostError(f"{message}{_WHERE_IT_LASTS.get(state, '')}")
    if state in NOT_THERE:
        return _not_there(state, message)
    return DatabaseSetupError(f"the database refused a statement: {message}")


def _not_there(state: str, message: str) -> BackfillError:
    if state == _NO_TABLE:
        return TableError(
            f"{message}; was the table dropped or renamed? If it was renamed, set the option dbtable to its new name; "
            "a stream then goes on where it stopped"
        )
    if state == _NO_COLUMN:
        return SchemaChangedError(
            f"{message}; was the column dropped or renamed? Start the query again, without that column in the option "
            "columns"
        )
    return SchemaChangedError(
        f"{message}; was it renamed, moved to another schema or dropped, as by ALTER TYPE or ALTER EXTENSION? Start "
        "the query again; it looks up the new names"
    )


def _rows_hidden(message: str) -> BackfillError:
    return TableError(
        f"{message}: a row-level security policy of the table hides rows from the role, and the change log has all of "
        "them. Run ALTER ROLE … BYPASSRLS, or connect as a role to which no policy applies"
    )


def _label_gone(message: str) -> BackfillError:
    return SchemaChangedError(
        f"{message}: a position of the stream has a label that the key's type no longer has. If the label was "
        f"renamed, give it back its name with ALTER TYPE … RENAME VALUE; else start over with {FRESH_START}"
    )


def _message(error: Exception) -> str:
    """The first line of what the server says, without its details."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    for name, value in getattr(error, "details", None) or ():
        if name in (_PRIMARY, _PRIMARY.decode()):
            primary = value.decode(errors="replace")
    text = str(primary or error).strip()
    # Without a primary message, ADBC gives words of its own, then the query, then the server's level and message.
    text = text if primary else _STATEMENT.sub("", text)
    found = None if primary else re.search(r"(?:ERROR|FATAL|PANIC):\s*(.*)", text)
    return (found[1] if found else text.splitlines()[0] if text else type(error).__name__).strip()


@contextmanager
def translating(about: About = about_anything) -> Iterator[None]:
    """Raises driver errors as ours."""
    try:
        yield
    except (psycopg.Error, adbc_driver_manager.Error, OSError) as error:
        # The driver's own text may quote the connection string or rows, and Spark prints the whole chain.
        raise translated(error, about) from None
