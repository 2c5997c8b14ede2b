"""What is no condition for `snapshotFilter`, and when another one may be given."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.__main__ import main
from backfill.errors import DatabaseSetupError, OptionsError
from backfill.options import parse
from backfill.upstream.postgres import PostgresUpstream
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.keyed_sink import backfill_to_end
from integration.stream_harness import table_of


def test_a_condition_that_divides_by_zero_is_named(database: Database, start_stream: StartStream) -> None:
    table_of(database, 40)
    run = start_stream(snapshotFilter="10 / (id - 5) >= 0")
    with pytest.raises(DatabaseSetupError, match=r"division by zero .* snapshotFilter divides, write NULLIF"):
        run.batch(100_000)


def test_another_filter_is_refused_in_every_phase_and_by_every_way_in(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 30)
    run = start_stream(snapshotFilter="id > 10", vnodeCount="1")
    run.batch(5)
    run.ask(5)
    run.restart(snapshotFilter="id > 11")
    with pytest.raises(OptionsError, match="began with snapshotFilter='id > 10', and now has snapshotFilter='id > 11'"):
        run.plan(5)
    run.restart(snapshotFilter="", onExistingState="resume")
    other = run.new_checkpoint()
    with pytest.raises(OptionsError, match="and now has no snapshotFilter"):
        other.plan(5)
    other.stop()
    run.restart(snapshotFilter="id > 10")
    backfill_to_end(run, 5)
    assert len(run.fold.rows) == 20


def test_once_no_rows_are_left_to_read_a_filter_may_be_left_out_for_good(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 30)
    run = start_stream(snapshotFilter="id > 10", vnodeCount="1")
    run.batch(5)
    run.restart(snapshotFilter="")
    with pytest.raises(OptionsError, match="and now has no snapshotFilter"):
        run.plan(5)
    run.restart(snapshotFilter="id > 10")
    backfill_to_end(run, 5)
    run.restart(snapshotFilter="")
    database.execute("UPDATE t SET v = 'new' WHERE id = 20")
    assert run.batch(5)
    assert main(["re-backfill", "--state-dir", run.options["stateDir"], "--to", "3"]) == 0
    assert run.plan(50)
    assert sorted(row["id"] for row in run.read()) == [1, 2, 3]
    run.restart(snapshotFilter="id > 10")
    with pytest.raises(OptionsError, match="began with no snapshotFilter"):
        run.read()


def test_a_new_checkpoint_that_resumes_after_the_backfill_needs_no_filter(
    database: Database, start_stream: StartStream
) -> None:
    table_of(database, 30)
    run = start_stream(snapshotFilter="id > 10", vnodeCount="1")
    backfill_to_end(run, 50)
    run.catch_up()  # With it the end of the backfill is recorded.
    run.restart(snapshotFilter="", onExistingState="resume")
    other = run.new_checkpoint()
    other.fold.rows.update(run.fold.rows)
    database.execute("UPDATE t SET v = 'new' WHERE id = 20")
    other.catch_up()
    assert other.fold.rows[(20,)]["v"] == "new"
    other.stop()


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("nope = 1", 'not a condition on a row of "public"."t": column "nope" does not exist'),
        ("id", "must be type boolean"),
        ("id > $1", "bind message supplies 0 parameters"),
        ("id = 1) OR (id > 1", 'syntax error at or near ")"'),
        ("true; DELETE FROM t", "cannot insert multiple commands"),
        ("true); DROP TABLE t; --", "syntax error"),
        ("true /* open", "unterminated /* comment"),
        ("count(*) > 1", "aggregate functions are not allowed"),
        ("id IN (SELECT max(id) FROM t)", "depends on more than a row's values: cannot use subquery"),
        (
            "random() < 0.5",
            "a row's values: functions in index predicate must be marked IMMUTABLE",
        ),
        ("at > now() - interval '1 day'", "must be marked IMMUTABLE. Leave out subselects"),
        ("at::date = '2026-01-01'", "must be marked IMMUTABLE"),
        ("at > 'now'", "depends on more than a row's values: the server reads 'now' as a time counted from the"),
        ("v = 'now' AND at < 'Today 12:00'", "reads 'today'"),
        ("at > $$now$$", "reads 'now'"),
        ("v = $a$ $$ today $a$ AND at < $b_1$tomorrow$b_1$", "reads 'tomorrow'"),
        ("at < 'today12:00' -- and not later", "reads 'today'"),
        ("""'it''s' <> v AND at = E'\ttomorrow_'""", "reads 'tomorrow'"),
        ("at <@ '[yesterday,tomorrow)'::tstzrange", "reads 'tomorrow'"),
        ("pair < '(now,2)'::pair", "reads 'now'"),
        ("pairs = '{\"(yesterday,2)\"}'", "reads 'yesterday'"),
        ("v <> ALL ('{now}') OR span = '[today,tomorrow]'", "reads 'today'"),
        ("ctid = '(0,1)'", "depends on more than a row's values: index creation on system columns"),
    ],
)
def test_what_is_no_condition_on_a_row_alone_is_refused_before_the_stream_starts(
    database: Database, condition: str, problem: str, tmp_path: Path
) -> None:
    database.execute("CREATE TYPE pair AS (day date, number int); CREATE TYPE span AS RANGE (subtype = date)")
    table_of(database, 3)
    database.execute("ALTER TABLE t ADD at timestamptz, ADD pair pair, ADD pairs pair[], ADD span span")
    options = {**database.options, "dbtable": "t", "stateDir": str(tmp_path / "state"), "snapshotFilter": condition}
    upstream = PostgresUpstream(parse(options))
    try:
        with pytest.raises(OptionsError, match="snapshotFilter is ") as caught:
            upstream.schema()
    finally:
        upstream.close()
    assert problem in str(caught.value)
    assert database.execute("SELECT count(*) FROM t") == [(3,)]
    assert database.execute("SELECT count(*) FROM pg_class WHERE relname = 't'") == [(1,)]


def test_the_doctor_refuses_it_too_and_literals_are_fine(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table_of(database, 3)
    database.execute("ALTER TABLE t ADD at timestamptz")
    command = ["doctor", "--url", database.url(tmp_path), "--dbtable", "t", "--option"]
    for condition in (
        "t.at > '2026-01-01 12:00+01' OR at IS NULL AND v LIKE '%now%' OR v = 'today'",
        "at > '2026-01-01' /* until 'today' */ -- 'now'",
        "at > $x$2026-01-01$x$ AND v <> $$now$$",
        "true",
        """jsonb '{"now": 1, "now": 2}' @> '{}' OR bytea 'now' = '' OR "t".v <> 'a--''now'""",
    ):
        main([*command, f"snapshotFilter={condition}"])
        assert "snapshotFilter" not in capsys.readouterr().out
    assert main([*command, "snapshotFilter=at > now()"]) == 1
    assert (
        "refused: snapshotFilter is 'at > now()', which depends on more than a row's values" in capsys.readouterr().out
    )


def test_a_role_that_may_not_make_temporary_tables_is_logged(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    table_of(database, 3)
    options = {**database.options, "dbtable": "t", "snapshotFilter": "id > 1"}
    options["sessionInitStatement"] = "SET default_transaction_read_only = on"
    upstream = PostgresUpstream(parse(options))
    try:
        assert upstream.schema().key == ("id",)
    finally:
        upstream.close()
    assert "could not be checked: cannot execute CREATE TABLE in a read-only transaction" in caplog.text
