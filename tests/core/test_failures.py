"""What PostgreSQL's errors become."""

from __future__ import annotations

import re

import adbc_driver_manager
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.errors import (
    BackfillError,
    ConnectionLostError,
    DatabaseSetupError,
    DataLossError,
    DefiniteError,
    DriverError,
    SchemaChangedError,
    SlotBusyError,
    SnapshotGoneError,
    TableError,
    TableLockedError,
    ValueOutOfRangeError,
)
from backfill.sinks.postgres.failures import about_target
from backfill.upstream.postgres.session.failures import (
    About,
    about_anything,
    about_init_statement,
    about_slot,
    about_snapshot,
    translated,
    translating,
)

VALUE = "hunter2-is-a-row-value"


def from_psycopg(state: str, text: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)(text)


def from_adbc(state: str | None, text: str, primary: str | None = None) -> adbc_driver_manager.Error:
    status = adbc_driver_manager.AdbcStatusCode.INTERNAL
    details = [] if primary is None else [("PG_DIAG_MESSAGE_PRIMARY", primary.encode())]
    return adbc_driver_manager.OperationalError(text, status_code=status, sqlstate=state, details=details)


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


@pytest.mark.parametrize("state", ["P0001", "P0004"])
def test_what_somebodys_function_says_of_a_row_is_not_told(state: str) -> None:
    for error in (from_psycopg(state, VALUE), from_adbc(state, f"ERROR:  {VALUE}", VALUE)):
        found = translated(error)
        assert type(found) is DatabaseSetupError
        assert "a function in the database refuses a statement" in found.message
        assert VALUE not in found.message
    assert translated(from_psycopg(state, "not here"), about_init_statement).message == f"not here ({state})"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"[libpq] Failed to execute query 'SELECT {VALUE}\nFROM t': out of memory for query result", "pyspark.memory"),
        (
            f"[libpq] Failed to execute query '{VALUE}': ' OR ': cannot allocate memory for output buffer",
            "allow at least",
        ),
        ("NOT_FOUND: [Driver Manager] Could not load x.so: failed to map segment from shared object", "pyspark.memory"),
        ("NOT_FOUND: [Driver Manager] Could not load libadbc_driver_postgresql.so", "install it again"),
    ],
)
def test_what_goes_wrong_in_this_process_is_not_told_as_a_lost_connection(text: str, told: str) -> None:
    found = translated(from_adbc(None, text))
    assert type(found) is DriverError
    assert told in found.message
    assert VALUE not in found.message


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("could not fork new process for connection: Cannot allocate memory", ConnectionLostError, "no connection"),
        ("connection failed: FATAL:  out of memory", ConnectionLostError, "no connection"),
        ('FATAL:  could not load library "/x.so": no such file', DatabaseSetupError, "session_preload_libraries"),
    ],
)
def test_what_the_server_lacks_is_not_told_of_this_process(text: str, kind: type[BackfillError], told: str) -> None:
    found = translated(from_adbc(None, text))
    assert type(found) is kind
    assert told in found.message


@pytest.mark.parametrize(
    "text",
    [
        "bad value for connect_timeout: 'abc'",
        'connection failed: FATAL:  unrecognized configuration parameter "work_memm"',
        'connection failed: FATAL:  invalid value for parameter "work_mem": "x"',
        "connection failed: FATAL:  invalid command-line argument for server process: -x",
        "connection failed: could not match 3 port numbers to 2 hosts",
        'connection failed: invalid "ssl_min_protocol_version" value: "TLSv9"',
        "connection failed: GSSAPI authentication not supported",
    ],
)
def test_a_mistake_in_the_url_is_not_tried_again(text: str) -> None:
    found = translated(psycopg.ProgrammingError(text))
    assert type(found) is DatabaseSetupError
    assert "check the options url" in found.message


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
    """In whatever language the server speaks."""
    adbc = f"INTERNAL: [libpq] Failed to execute query: FEHLER:  {text}\nQuery was: SELECT {VALUE}"
    for error in (from_psycopg(state, text), from_adbc(state, adbc), from_adbc(state, adbc, text)):
        found = translated(error, about)
        assert type(found) is kind
        assert f"{text} ({state})" in found.message
        assert VALUE not in found.message


def test_a_state_that_is_gone_is_told_with_what_to_do() -> None:
    found = translated(from_psycopg("42704", 'snapshot "00000003-0000001B-1" does not exist'), about_snapshot)
    assert "Start the query again" in found.message


@pytest.mark.parametrize(
    ("state", "text", "kind", "advice"),
    [
        ("55P03", "canceling statement due to lock timeout", TableLockedError, "from being written"),
        ("22021", 'invalid byte sequence for encoding "UTF8": 0x00', ValueOutOfRangeError, r"U\+0000"),
        ("22P02", f'invalid input value for enum colour: "{VALUE}"', TableError, "ADD VALUE there"),
        ("22P02", f'invalid input syntax for type uuid: "{VALUE}"', TableError, "column of the sink's table"),
        ("42501", "permission denied for table copy", DatabaseSetupError, "refused a statement on"),
        ("42501", 'query would be affected by row-level security policy for table "copy"', TableError, "BYPASSRLS"),
        ("42703", 'column "note" does not exist', DatabaseSetupError, "refused a statement on"),
        ("22012", "division by zero", DatabaseSetupError, "refused a statement on"),
        ("53400", "temporary file size exceeds temp_file_limit (64kB)", DatabaseSetupError, "refused a statement on"),
        ("22003", "integer out of range", TableError, "column of the sink's table .* ALTER COLUMN … TYPE"),
        ("22001", "value too long for type character varying(4)", TableError, "column of the sink's table"),
        ("22007", f'invalid input syntax for type date: "{VALUE}"', TableError, "column of the sink's table"),
        ("23502", 'null value in column "v" violates not-null constraint', TableError, "of the sink's table"),
        ("23503", 'insert on "copy" violates foreign key constraint "f"', TableError, "DEFERRABLE INITIALLY DEFERRED"),
        ("23505", 'duplicate key value violates unique constraint "u"', TableError, "DEFERRABLE INITIALLY DEFERRED"),
        ("23514", 'new row violates check constraint "c"', TableError, "of the sink's table"),
        ("23514", 'no partition of relation "copy" found for row', TableError, "Make one, .* PARTITION OF … DEFAULT"),
        (
            "21000",
            "ON CONFLICT DO UPDATE command cannot affect row a second time",
            TableError,
            "by its type or its coll",
        ),
        ("23P01", 'conflicting key value violates exclusion constraint "x"', TableError, "of the sink's table"),
    ],
    ids=lambda item: str(item)[:30],
)
def test_what_goes_wrong_with_a_sinks_table_is_not_told_of_the_source(
    state: str, text: str, kind: type[BackfillError], advice: str
) -> None:
    adbc = f"INTERNAL: [libpq] Failed to execute query: ERROR:  {text}\nQuery: SELECT {VALUE}"
    for error in (from_psycopg(state, text), from_adbc(state, adbc), from_adbc(state, adbc, text)):
        found = translated(error, about_target)
        assert type(found) is kind
        assert re.search(advice, found.message)
        assert not re.search("option|onExistingState|change log|of the stream", found.message)
        assert VALUE not in found.message


@pytest.mark.parametrize("state", ["P0001", "P0004"])
def test_what_a_trigger_of_a_sinks_table_says_is_left_to_the_servers_log(state: str) -> None:
    for error in (from_psycopg(state, f"bad {VALUE}"), from_adbc(state, f"ERROR:  bad {VALUE}")):
        found = translated(error, about_target)
        assert type(found) is TableError
        assert f"refuses the batch ({state})" in found.message
        assert VALUE not in found.message


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('connection to server at "127.0.0.1", port 1 failed: Connection refused', ConnectionLostError),
        ("server closed the connection unexpectedly", ConnectionLostError),
        ("connection timeout expired", ConnectionLostError),
        ('connection to server at "db" failed: FATAL:  the database system is starting up', ConnectionLostError),
        ('failed: FATAL:  password authentication failed for user "app"', DatabaseSetupError),
        ("failed: FATAL:  unsupported startup parameter: options", DatabaseSetupError),
        ('failed: FATAL:  database "shop" does not exist', DatabaseSetupError),
        ('failed: FATAL:  role "app" does not exist', DatabaseSetupError),
        ('failed: FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "app"', DatabaseSetupError),
        ("failed: fe_sendauth: no password supplied", DatabaseSetupError),
        ('failed: FATAL:  role "app" is not permitted to log in', DatabaseSetupError),
        ('invalid connection option "sslmod"', DatabaseSetupError),
        *(
            (f'connection to server at "db" failed: {text}', DatabaseSetupError)
            for text in (
                'FATAL:  pg_hba.conf rejects connection for host "10.0.0.1", user "app", database "shop"',
                'FATAL:  database "shop" is not currently accepting connections',
                "FATAL:  connection requires a valid client certificate",
                "SSL error: certificate verify failed",
                "SSL error: tlsv1 alert unknown ca",
                'server certificate for "db.internal" does not match host name "db"',
                'private key file "/etc/app.key" has group or world access; file must have permissions u=rw (0600)',
                "server does not support SSL, but SSL was required",
                "server doesn't support GSSAPI encryption, but it was required",
                "channel binding required, but SSL not in use",
                'authentication method requirement "md5" failed: server requested SASL authentication',
            )
        ),
        ('connection is bad: definition of service "shop" not found', DatabaseSetupError),
        ('invalid channel_binding value: "always"', DatabaseSetupError),
        ('connection to server at "certificates.internal" (10.0.0.1), port 1 failed: timeout', ConnectionLostError),
        ("SSL error: unexpected eof while reading", ConnectionLostError),
        ("could not send SSL negotiation packet: Broken pipe", ConnectionLostError),
    ],
)
def test_an_error_without_sqlstate_is_the_connections(text: str, kind: type[BackfillError]) -> None:
    for error in (psycopg.OperationalError(text), from_adbc(None, text), OSError(text)):
        assert type(translated(error)) is kind


@pytest.mark.parametrize(
    "text",
    [
        "sorry, too many clients already",
        "remaining connection slots are reserved for non-replication superuser connections",
        "remaining connection slots are reserved for roles with the SUPERUSER attribute",
        'too many connections for role "app"',
    ],
)
def test_a_server_without_room_for_more_sessions_is_told_of_its_setting(text: str) -> None:
    for error in (psycopg.OperationalError(f"connection failed: FATAL:  {text}"), from_adbc(None, f"FATAL:  {text}")):
        found = translated(error)
        assert type(found) is ConnectionLostError
        assert text in found.message
        assert "ALTER SYSTEM SET max_connections" in found.message


@pytest.mark.parametrize("kind", [psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError])
def test_what_psycopg_itself_refuses_is_no_matter_of_the_connection(kind: type[psycopg.Error]) -> None:
    found = translated(kind("the query has 2 placeholders but 1 parameters were passed"))
    assert type(found) is DatabaseSetupError
    assert "please report this" in found.message
    assert type(translated(kind('invalid connection option "sslmod"'))) is DatabaseSetupError
    assert type(translated(psycopg.InterfaceError("the connection is closed"))) is ConnectionLostError


@pytest.mark.parametrize(
    "text",
    [
        f"duplicate key value violates unique constraint\nDETAIL:  Key (name)=({VALUE}) already exists.",
        f"ERROR:  could not serialize\nDETAIL: {VALUE}\nCONTEXT: {VALUE}",
        f"ERROR:  no\nLINE 1: SELECT '{VALUE}'\n               ^",
    ],
)
@pytest.mark.parametrize("state", ["23505", "40001", "42P01", "42703", "XX000"])
def test_details_are_left_out_because_they_may_quote_rows(state: str, text: str) -> None:
    for error in (from_psycopg(state, text), from_adbc(state, text)):
        assert VALUE not in translated(error).message


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("22P02", f'invalid input syntax for type integer: "{VALUE}"'),
        ("22003", f'value "{VALUE}" is out of range for type integer'),
        ("22007", f'invalid input syntax for type timestamp: "two lines\n{VALUE}"'),
        ("22P02", f'invalid input syntax for type uuid: "a "quoted" {VALUE}"'),
        ("22P02", f"ungültige Eingabesyntax für Typ integer: »{VALUE}«"),
        ("22P02", f"syntaxe en entrée invalide pour le type integer : « {VALUE} »"),
        ("22P02", f"neplatná syntaxe vstupu pro typ integer: „{VALUE}“"),
        ("22P02", f"类型integer的输入语法无效: “{VALUE}”"),
    ],
)
def test_a_value_that_the_message_itself_quotes_is_left_out(state: str, text: str) -> None:
    for error in (from_psycopg(state, text), from_adbc(state, f"INTERNAL: ERROR:  {text}")):
        found = translated(error)
        assert isinstance(found, DefiniteError)
        assert VALUE not in found.message
        assert re.split('["«»„“]', text)[0].strip() in found.message


def test_the_drivers_error_does_not_travel_along() -> None:
    with pytest.raises(DatabaseSetupError) as caught, translating():
        raise from_psycopg("42601", f"syntax error\n{VALUE}")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_other_errors_are_not_translated() -> None:
    with pytest.raises(ZeroDivisionError), translating():
        raise ZeroDivisionError


@given(st.text(), st.sampled_from(["22P02", "40001", "XX000", "08006"]))
def test_any_text_is_translated(text: str, state: str) -> None:
    assert translated(from_psycopg(state, text)).message
    assert translated(psycopg.OperationalError(text)).message
