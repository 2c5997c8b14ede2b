"""What PostgreSQL's errors become: the SQLSTATE decides, or else what the statement was about."""

from __future__ import annotations

import pytest

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
from backfill.upstream.postgres.session.failures import About, about_anything, about_slot, about_snapshot, translated
from tests.postgres.raised import VALUE, from_adbc, from_psycopg

TABLE = [
    ("08006", "connection failure", ConnectionLostError),
    ("57P01", "terminating connection due to administrator command", ConnectionLostError),
    ("57P03", "the database system is starting up", ConnectionLostError),
    ("40001", "could not serialize access", ConnectionLostError),
    ("40P01", "deadlock detected", ConnectionLostError),
    ("53300", "sorry, too many clients already", ConnectionLostError),
    ("53200", "out of memory", ConnectionLostError),
    ("53100", "could not extend file: No space left on device", DatabaseSetupError),
    ("53400", "temporary file size exceeds temp_file_limit (64kB)", DatabaseSetupError),
    ("55P03", "canceling statement due to lock timeout", TableLockedError),
    ("57014", "canceling statement due to statement timeout", ConnectionLostError),
    ("58030", "could not read file: Input/output error", ConnectionLostError),
    ("55006", 'replication slot "s" is active for PID 42', SlotBusyError),
    ("42P01", 'relation "orders" does not exist', TableError),
    ("42703", 'column "note" does not exist', SchemaChangedError),
    ("42501", "permission denied for table orders", DatabaseSetupError),
    ("42601", "syntax error", DatabaseSetupError),
    ("XX000", "cache lookup failed", DatabaseSetupError),
    ("XX000", "invalid memory alloc request size 1132462083", ValueOutOfRangeError),
    ("54000", "string buffer exceeds maximum allowed length (1073741823 bytes)", ValueOutOfRangeError),
]


@pytest.mark.parametrize(("state", "text", "kind"), TABLE, ids=lambda item: str(item)[:30])
def test_the_sqlstate_decides_what_an_error_is(state: str, text: str, kind: type[BackfillError]) -> None:
    adbc = f"INTERNAL: [libpq] Failed to execute query: ERROR:  {text}\nLINE 1: SELECT {VALUE}\nQuery: SELECT {VALUE}"
    for error in (from_psycopg(state, text), from_adbc(state, adbc)):
        found = translated(error)
        assert type(found) is kind
        assert text.partition('"')[0] in found.message
        assert state in found.message
        assert VALUE not in found.message


def test_a_table_of_more_partitions_than_the_server_has_locks_is_answered_with_the_setting() -> None:
    found = translated(from_psycopg("53200", "out of shared memory"))
    assert "out of shared memory (53200)" in found.message
    assert "ALTER SYSTEM SET max_locks_per_transaction" in found.message
    assert "numPartitions" in found.message


@pytest.mark.parametrize(
    ("about", "state", "text", "kind"),
    [
        (about_snapshot, "22023", 'invalid snapshot identifier: "00000003-1"', SnapshotGoneError),
        (about_snapshot, "22023", "ungültiger Snapshot-Bezeichner: »00000003-1«", SnapshotGoneError),
        (about_snapshot, "42704", 'snapshot "00000003-0000001B-1" does not exist', SnapshotGoneError),
        (about_snapshot, "55000", "could not import the requested snapshot", SnapshotGoneError),
        (about_snapshot, "42704", 'スナップショット"00000003-1"は存在しません', SnapshotGoneError),
        (about_snapshot, "55000", "n'a pas pu importer le snapshot demandé", SnapshotGoneError),
        (about_slot, "42704", 'replication slot "orders" does not exist', DataLossError),
        (about_slot, "42704", "la publication « orders » n'existe pas", DataLossError),
        (about_slot, "55000", 'can no longer get changes from replication slot "orders"', DataLossError),
        (about_slot, "55000", 'can no longer access replication slot "orders"', DataLossError),
        (about_slot, "58P01", "das angeforderte WAL-Segment wurde schon entfernt", DatabaseSetupError),
        (about_slot, "55006", "Replikations-Slot »orders« ist aktiv für PID 42", SlotBusyError),
        (about_slot, "57P01", "interrompendo a conexão por causa de um comando do administrador", ConnectionLostError),
        (about_snapshot, "57P01", "接続を終了しています", ConnectionLostError),
        (about_anything, "42704", 'type "mood" does not exist', SchemaChangedError),
        (about_anything, "42883", "function chosen(integer) does not exist", SchemaChangedError),
        (about_anything, "55000", "unlogged", DatabaseSetupError),
    ],
    ids=lambda item: getattr(item, "__name__", str(item))[:30],
)
def test_what_the_statement_was_about_decides_where_the_sqlstate_does_not(
    about: About, state: str, text: str, kind: type[BackfillError]
) -> None:
    """This holds in every language that the server may speak."""
    adbc = f"INTERNAL: [libpq] Failed to execute query: FEHLER:  {text}\nQuery was: SELECT {VALUE}"
    for error in (from_psycopg(state, text), from_adbc(state, adbc), from_adbc(state, adbc, text)):
        found = translated(error, about)
        assert type(found) is kind
        assert f"{text} ({state})" in found.message
        assert VALUE not in found.message


def test_a_state_that_is_gone_is_reported_with_what_to_do() -> None:
    found = translated(from_psycopg("42704", 'snapshot "00000003-0000001B-1" does not exist'), about_snapshot)
    assert "Start the query again" in found.message
    assert "another server than the driver" in found.message  # Another server says the same, as it has no such state.
