from __future__ import annotations

import os
import pickle
import signal
import threading
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from backfill_state import (
    BarrierBackwardsError,
    DefiniteStateError,
    DuckDBProgressStore,
    StateBusyError,
    StateConflictError,
    StateDamagedError,
    StateFileError,
    StateLayoutError,
    StateNoMemoryLeftError,
    StateStoreError,
    StateUnwritableError,
    StateVersionError,
    TransientStateError,
)
from backfill_state.duckdb_errors import explained, explaining
from backfill_state.duckdb_file import StateFile
from backfill_state.duckdb_instance import ConnectedFile, OwnInstances
from backfill_state.duckdb_rows import PROGRESS_FILE

ALL: list[StateStoreError] = [
    StateConflictError("the state file /s", "it is of another stream"),
    BarrierBackwardsError("the state file /s", 8, 7),
    StateLayoutError("no such column"),
    StateDamagedError("/s", "bad checksum"),
    StateVersionError("/s", "format version 2", "format versions 1 to 1"),
    StateUnwritableError("/s", "No space left on device"),
    StateFileError("/s", "a copy of it cannot be kept"),
    StateNoMemoryLeftError("/s", "bad allocation"),
    StateBusyError("/s", 4711),
    StateBusyError("/s", None),
]


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: StateStoreError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - it is our own pickle
    assert type(again) is type(error)
    assert (again.args, vars(again), str(again)) == (error.args, vars(error), str(error))


@pytest.mark.parametrize("error", ALL, ids=lambda error: type(error).__name__)
def test_an_error_is_either_definite_or_transient(error: StateStoreError) -> None:
    assert isinstance(error, DefiniteStateError) != isinstance(error, TransientStateError)


def test_a_newer_duckdb_is_named_with_both_versions() -> None:
    text = (
        "IO Error: Trying to read a database file with version number 99, "
        "but we can only read versions between 64 and 67.\nThe database file was created with a newer version."
    )
    known = explained(duckdb.IOException(text), "/s")
    assert isinstance(known, StateVersionError)
    assert (known.found, known.supported.partition(" (")[0]) == (
        "DuckDB storage version 99",
        "DuckDB storage versions 64 and 67",
    )


@pytest.mark.parametrize(
    "text",
    [
        "FATAL Error: database has been invalidated because of: Could not write file: No space left on device",
        "FATAL Error: fsync failed!",
        "FATAL Error: Failed: database has been invalidated because of a previous fatal error: fsync failed!",
    ],
)
def test_a_disk_that_is_full_or_fails_is_not_taken_for_damage(text: str) -> None:
    assert isinstance(explained(duckdb.FatalException(text), "/s"), StateUnwritableError)


def test_a_process_that_gets_no_more_memory_is_not_reported_to_need_a_higher_limit_of_duckdb() -> None:
    text = "Out of Memory Error: Failed to allocate block of 2097152 bytes (bad allocation)"
    found = explained(duckdb.OutOfMemoryException(text), "/s")
    assert type(found) is StateNoMemoryLeftError
    assert "needs more memory than the system gives this process (" in str(found)


def test_a_database_that_duckdb_has_given_up_is_not_taken_for_damage() -> None:
    """Whatever the reason, the file is as it was, and the next call opens it anew."""
    text = (
        "FATAL Error: Failed: database has been invalidated because of a previous fatal error. The database must be "
        'restarted prior to being used again.\nOriginal error: "INTERNAL Error: Attempted to access index 1"'
    )
    assert explained(duckdb.FatalException(text), "/s") is None


def test_a_log_that_does_not_fit_its_file_is_damage_and_no_conflict_with_another_store() -> None:
    text = 'TransactionContext Error: Failure while replaying WAL file "/s.wal": Conflict on tuple deletion!'
    assert isinstance(explained(duckdb.TransactionException(text), "/s"), StateDamagedError)


def test_a_lock_without_a_process_id_is_still_a_lock() -> None:
    known = explained(duckdb.IOException('IO Error: Could not set lock on file "/s": Conflicting lock'), "/s")
    assert isinstance(known, StateBusyError)
    assert known.holder is None
    assert "another process" in str(known)


def test_an_error_that_is_not_understood_stays_what_it_is() -> None:
    assert explained(duckdb.BinderException("no such column"), "/s") is None


def interrupted(connection: duckdb.DuckDBPyConnection) -> None:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    connection.execute("SELECT count(*) FROM range(1_000_000_000) AS r(i) WHERE i % 7 = 0").fetchall()


def test_a_ctrl_c_amid_a_query_is_one() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), explaining(Path("/s")), duckdb.connect() as connection:
            interrupted(connection)
    finally:
        signal.signal(signal.SIGINT, before)


class InterruptedRows:
    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise KeyboardInterrupt


def test_a_ctrl_c_while_rows_are_given_is_one() -> None:
    with pytest.raises(KeyboardInterrupt), explaining(Path("/s")), duckdb.connect() as connection:
        connection.register("given", InterruptedRows())


class InterruptedInClosing(OwnInstances):
    def connect(self, path: Path) -> ConnectedFile:
        connected = super().connect(path)

        def close() -> None:
            connected.close()
            raise RuntimeError("Query interrupted")

        return ConnectedFile(connected.connection, close)


def test_a_ctrl_c_while_a_file_is_closed_is_one(tmp_path: Path) -> None:
    with DuckDBProgressStore(tmp_path / "state") as store:
        store.epoch()
    file = StateFile(tmp_path / "state", replace(PROGRESS_FILE, instances=InterruptedInClosing({})))
    with file.transaction():
        pass
    with pytest.raises(KeyboardInterrupt):
        file.close()
