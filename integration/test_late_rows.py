"""`orderColumn`: a row that comes late by its order is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.__main__ import main
from backfill.errors import OptionsError
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import next_changes, table_of


def test_a_row_that_comes_late_by_its_order_is_left_out(
    database: Database, start_stream: StartStream, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the table is fed by several writers, none of which knows how far the others are."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, at timestamptz NOT NULL);"
        "INSERT INTO t VALUES (1, 'first', '2026-01-05'), (2, 'first', '2026-01-05'), (3, 'first', '2026-01-05')"
    )
    run = start_stream(envelope="upsert", orderColumn="at")
    run.batch()
    database.execute(
        "UPDATE t SET v = 'late', at = '2026-01-04' WHERE id = 1;"
        "UPDATE t SET v = 'next', at = '2026-01-06' WHERE id = 2;"
        "UPDATE t SET v = 'late', at = '2026-01-05' WHERE id = 2; UPDATE t SET v = 'at once' WHERE id = 3"
    )
    assert next_changes(run) == [
        ("update_preimage", 2, "first"),
        ("update_postimage", 2, "next"),
        ("update_preimage", 3, "first"),
        ("update_postimage", 3, "at once"),
    ]
    run.restart()
    database.execute("DELETE FROM t; INSERT INTO t VALUES (1, 'late', '2026-01-03'), (2, 'new', '2026-01-07')")
    assert next_changes(run) == [
        ("delete", 1, "first"),
        ("delete", 2, "next"),
        ("delete", 3, "at once"),
        ("insert", 2, "new"),
    ]
    again = ["re-backfill", "--state-dir", run.options["stateDir"]]
    assert main(again) == 1
    assert "orderColumn the stream may have emitted a later row" in capsys.readouterr().err
    run.restart(envelope="operations", orderColumn="")
    run.fold.full = False
    database.execute("UPDATE t SET v = 'plain' WHERE id = 2")
    run.batch()
    run.restart()  # which records it
    run.plan()
    assert main(again) == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [("date", "2026-01-0{}"), ("timestamp", "2026-01-0{}"), ("timestamptz", "2026-01-0{}"), ("int2", "{}")],
)
def test_an_order_of_any_of_its_types_decides(
    database: Database, start_stream: StartStream, kind: str, value: str
) -> None:
    first, late, later = (value.format(day) for day in (5, 4, 6))
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, v text, at {kind}); "
        f"INSERT INTO t VALUES (1, 'first', '{first}'), (2, 'first', '{first}')"
    )
    run = start_stream(envelope="upsert", orderColumn="at")
    run.batch()
    database.execute(
        f"UPDATE t SET v = 'late', at = '{late}' WHERE id = 1; UPDATE t SET v = 'next', at = '{later}' WHERE id = 2;"
        "DELETE FROM t WHERE id = 1"
    )
    assert next_changes(run) == [
        ("update_preimage", 2, "first"),
        ("update_postimage", 2, "next"),
        ("delete", 1, "first"),
    ]


def test_a_row_without_an_order_is_never_late_and_its_key_keeps_the_order_that_it_had(
    database: Database, start_stream: StartStream
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text, at int); INSERT INTO t VALUES (1, 'a', NULL)")
    run = start_stream(envelope="upsert", orderColumn="at")
    run.batch()
    later = (("b", "5"), ("late", "4"), ("c", "NULL"), ("late", "3"), ("d", "6"))
    for value, order in later:
        database.execute(f"UPDATE t SET v = '{value}', at = {order}")
    assert [row[2] for row in next_changes(run) if row[0] == "update_postimage"] == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("column", "found"), [("v", "of type string"), ("nowhere", "the columns are id, v"), ("ID", "did you mean .id.")]
)
def test_an_order_is_a_number_or_a_time(database: Database, start_stream: StartStream, column: str, found: str) -> None:
    table_of(database, 1)
    run = start_stream(envelope="upsert", orderColumn=column)
    with pytest.raises(OptionsError, match=f"orderColumn names '{column}'.*{found}"):
        run.batch()
    assert database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
    assert not list(Path(run.options["stateDir"]).rglob("*.duckdb"))
