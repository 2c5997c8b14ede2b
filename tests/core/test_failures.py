"""What PostgreSQL's errors become, and what is tried again: with a clock of the test's own."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

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
    SchemaChangedError,
    SlotBusyError,
    SnapshotGoneError,
    TableError,
    TableLockedError,
    TransientError,
)
from backfill.upstream.postgres.failures import About, RetryPolicy, translated, translating

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
    ("55P03", "canceling statement due to lock timeout", TableLockedError),
    ("57014", "canceling statement due to statement timeout", ConnectionLostError),
    ("58030", "could not read file: Input/output error", ConnectionLostError),
    ("55006", 'replication slot "s" is active for PID 42', SlotBusyError),
    ("42P01", 'relation "orders" does not exist', TableError),
    ("42703", 'column "note" does not exist', SchemaChangedError),
    ("42501", "permission denied for table orders", DatabaseSetupError),
    ("42601", "syntax error", DatabaseSetupError),
    ("XX000", "cache lookup failed", DatabaseSetupError),
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


@pytest.mark.parametrize(
    ("about", "state", "text", "kind"),
    [
        (About.SNAPSHOT, "22023", 'invalid snapshot identifier: "00000003-1"', SnapshotGoneError),
        (About.SNAPSHOT, "22023", "ungültiger Snapshot-Bezeichner: »00000003-1«", SnapshotGoneError),
        (About.SNAPSHOT, "42704", 'スナップショット"00000003-1"は存在しません', SnapshotGoneError),
        (About.SNAPSHOT, "55000", "n'a pas pu importer le snapshot demandé", SnapshotGoneError),
        (About.SLOT, "42704", 'replication slot "orders" does not exist', DataLossError),
        (About.SLOT, "42704", "la publication « orders » n'existe pas", DataLossError),
        (About.SLOT, "55000", 'can no longer access replication slot "orders"', DataLossError),
        (About.SLOT, "55006", "Replikations-Slot »orders« ist aktiv für PID 42", SlotBusyError),
        (About.SLOT, "57P01", "interrompendo a conexão por causa de um comando do administrador", ConnectionLostError),
        (About.SNAPSHOT, "57P01", "接続を終了しています", ConnectionLostError),
        (About.ANYTHING, "42704", 'type "mood" does not exist', DatabaseSetupError),
        (About.ANYTHING, "55000", "unlogged", DatabaseSetupError),
    ],
    ids=lambda item: str(item)[:30],
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
    ],
)
def test_an_error_without_sqlstate_is_the_connections(text: str, kind: type[BackfillError]) -> None:
    for error in (psycopg.OperationalError(text), from_adbc(None, text), OSError(text)):
        assert type(translated(error)) is kind


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


def test_an_error_of_ours_stays_what_it_is() -> None:
    error = TableError("no")
    assert translated(error) is error


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


# -- trying again ------------------------------------------------------------------------------------------------


@dataclass
class Clock:
    """Time passes only while somebody sleeps or works."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def policy(self, *, first: float = 0.1, most: float = 5.0, give_up_after: float = 120.0) -> RetryPolicy:
        return RetryPolicy(first, most, give_up_after, self.read, self.sleep)


@dataclass
class Operation:
    """Fails so many times, taking its time, then works; keeps when it was called and when something was mended."""

    clock: Clock
    failures: int
    error: Exception
    takes: float = 0.0
    events: list[str] = field(default_factory=list)

    def __call__(self) -> str:
        self.events.append("try")
        self.clock.now += self.takes
        if self.events.count("try") <= self.failures:
            raise self.error
        return "result"

    def recover(self) -> None:
        self.events.append("recover")


LOST = ConnectionLostError("lost")


def test_what_works_is_done_once_and_waits_for_nothing() -> None:
    clock = Clock()
    operation = Operation(clock, 0, LOST)
    assert clock.policy().run(operation, operation.recover) == "result"
    assert (operation.events, clock.slept) == (["try"], [])


@pytest.mark.parametrize("error", [LOST, psycopg.OperationalError("gone"), from_psycopg("57P01", "going down")])
def test_a_transient_error_is_tried_again_after_mending(error: Exception) -> None:
    clock = Clock()
    operation = Operation(clock, 2, error)
    assert clock.policy().run(operation, operation.recover) == "result"
    assert operation.events == ["try", "recover", "try", "recover", "try"]
    assert len(clock.slept) == 2


@pytest.mark.parametrize("error", [TableError("no"), from_psycopg("42501", "permission denied")])
def test_a_definite_error_is_not_tried_again(error: Exception) -> None:
    clock = Clock()
    operation = Operation(clock, 1, error)
    with pytest.raises(DefiniteError):
        clock.policy().run(operation, operation.recover)
    assert (operation.events, clock.slept) == (["try"], [])


def test_an_error_of_the_programs_own_is_not_tried_again() -> None:
    clock = Clock()
    operation = Operation(clock, 1, ValueError("a mistake"))
    with pytest.raises(ValueError, match="a mistake"):
        clock.policy().run(operation, operation.recover)
    assert operation.events == ["try"]


def test_pauses_double_up_to_the_longest_and_are_shortened_at_random_by_half_at_most() -> None:
    clock = Clock()
    operation = Operation(clock, 9, LOST)
    clock.policy(first=0.1, most=5.0).run(operation, operation.recover)
    whole = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert all(long / 2 <= slept <= long for slept, long in zip(clock.slept, whole, strict=True))
    assert len({slept / long for slept, long in zip(clock.slept, whole, strict=True)}) > 1


@given(st.floats(0.0, 30.0), st.integers(0, 10_000))
def test_it_gives_up_with_the_last_error_within_the_time_since_the_first_failure(takes: float, seed: int) -> None:
    random.seed(seed)
    clock = Clock()
    operation = Operation(clock, 10_000, LOST, takes)
    with pytest.raises(TransientError, match="lost"):
        clock.policy(give_up_after=60.0).run(operation, operation.recover)
    since_the_first_failure = clock.now - 1000.0 - takes
    assert since_the_first_failure <= 60.0 + takes
    assert since_the_first_failure >= 60.0 - 5.0


def test_a_first_try_that_takes_long_is_not_held_against_the_second() -> None:
    clock = Clock()
    operation = Operation(clock, 1, LOST, takes=100.0)
    assert clock.policy(give_up_after=60.0).run(operation, operation.recover) == "result"


def test_a_loop_of_its_own_waits_as_long_and_gives_up_with_its_error() -> None:
    clock = Clock()
    policy = clock.policy(first=0.1, most=5.0, give_up_after=60.0)

    def loop() -> None:
        failures = 0
        while True:
            try:
                raise LOST
            except TransientError:
                failures += 1
                policy.pause_or_raise(failures)

    with pytest.raises(ConnectionLostError, match="lost"):
        loop()
    whole = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, *[5.0] * 20]
    assert all(long / 2 <= slept <= long for slept, long in zip(clock.slept, whole, strict=False))
    assert 20.0 < sum(clock.slept) <= 60.0
