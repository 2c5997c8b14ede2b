"""What is noted beside the target about the batches that it has, and what it does not take for the next batch.

A target that has lost rows of recorded batches would go on without them, and nothing would show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from backfill.errors import OptionsError, StateError, TableError
from backfill.sinks.postgres import PostgresSink, start_over
from integration.copies import batch_of, inserts, sink
from integration.database import Database
from integration.servers import LocalServer
from tests.collected import Rows

UNLOGGED_TABLE = "CREATE UNLOGGED TABLE copy (id int PRIMARY KEY)"
UNLOGGED_PARTITION = """
    CREATE TABLE copy (id int PRIMARY KEY) PARTITION BY HASH (id);
    CREATE TABLE other PARTITION OF copy FOR VALUES WITH (MODULUS 2, REMAINDER 0);
    CREATE UNLOGGED TABLE part PARTITION OF copy FOR VALUES WITH (MODULUS 2, REMAINDER 1)
"""

RULES = {
    "no insert": "ON INSERT TO copy DO INSTEAD NOTHING",
    "some inserts": "ON INSERT TO copy WHERE NEW.id > 1 DO INSTEAD NOTHING",
    "update": "ON UPDATE TO copy DO ALSO NOTHING",
}


@pytest.fixture
def apply(database: Database, tmp_path: Path) -> PostgresSink:
    """The sink of the query `t`, whose table has batch 0."""
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    made = sink(database, tmp_path)
    made(inserts(1), 0)
    return made


def test_a_table_that_was_started_over_takes_no_later_batch(
    database: Database, apply: PostgresSink, tmp_path: Path
) -> None:
    start_over(url=database.url(tmp_path), table="copy", query="t")
    with pytest.raises(StateError, match=r"'t' has applied no batch to this table, which is empty, .* batch 1"):
        apply(inserts(2), 1)
    apply(inserts(3), 0)
    apply(inserts(4), 1)
    assert database.execute("TABLE copy") == [(3,), (4,)]


@pytest.mark.usefixtures("apply")
def test_a_table_is_not_emptied_for_a_query_that_has_not_filled_it(database: Database, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(StateError, match=r"no query 'T' has applied a batch to the table .*; nothing was removed"):
            start_over(url=database.url(tmp_path), table="copy", query="T")
    with pytest.raises(OptionsError, match="expected a name"):
        start_over(url=database.url(tmp_path), table="copy", query=" ")
    assert database.execute("TABLE copy") == [(1,)]
    start_over(url=database.url(tmp_path), table="copy", query="t")
    start_over(url=database.url(tmp_path), table="copy", query="T")
    assert database.execute("TABLE copy") == []


def test_a_table_that_was_emptied_is_filled_again_only_where_it_was_started_over(
    database: Database, apply: PostgresSink, tmp_path: Path
) -> None:
    """Without writes the first batch of a new checkpoint may be that of the old one."""
    database.execute("TRUNCATE copy")
    with pytest.raises(StateError, match="its table was emptied since"):
        apply(inserts(1), 0)
    start_over(url=database.url(tmp_path), table="copy", query="t")
    apply(inserts(1), 0)
    assert database.execute("TABLE copy") == [(1,)]


def test_a_table_that_was_made_again_is_not_gone_on_with(
    database: Database, apply: PostgresSink, tmp_path: Path
) -> None:
    database.execute("DROP TABLE copy; CREATE TABLE copy (id int PRIMARY KEY)")
    for batch in (0, 1):
        with pytest.raises(StateError, match=r'"copy" was dropped and made again since .* \(it had OID \d+, and has'):
            apply(inserts(1), batch)
    start_over(url=database.url(tmp_path), table="copy", query="t")
    apply(inserts(3), 0)
    assert database.execute("TABLE copy") == [(3,)]


def test_a_table_that_was_made_again_with_its_rows_goes_on_once_that_is_reported(
    database: Database, apply: PostgresSink
) -> None:
    """A restore from a dump does this: it gives every table another OID."""
    database.execute("ALTER TABLE copy RENAME TO old; CREATE TABLE copy (LIKE old INCLUDING ALL)")
    database.execute("INSERT INTO copy TABLE old")
    with pytest.raises(StateError, match="or it was restored from a dump") as refused:
        apply(inserts(2), 1)
    (mended,) = re.findall("run (UPDATE .*); else", str(refused.value))
    database.execute(mended)
    apply(inserts(2), 1)
    assert database.execute("TABLE copy") == [(1,), (2,)]


@pytest.mark.usefixtures("apply")
def test_a_second_copy_made_of_the_first_follows_from_there(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE second (LIKE copy INCLUDING ALL); INSERT INTO second TABLE copy")
    other = sink(database, tmp_path, table="second")
    other(inserts(2), 1)
    assert database.execute("TABLE second") == [(1,), (2,)]


def test_a_table_that_was_put_back_to_an_earlier_state_is_reported(database: Database, apply: PostgresSink) -> None:
    database.execute("CREATE TABLE rows AS TABLE copy; CREATE TABLE noted AS TABLE backfill_batches")
    apply(inserts(2), 1)
    database.execute(
        "DELETE FROM copy; INSERT INTO copy TABLE rows; DELETE FROM backfill_batches;"
        "INSERT INTO backfill_batches TABLE noted"
    )
    with pytest.raises(StateError, match=r"has applied batch 0 .* apply batch 2: .* restored to an earlier state"):
        apply(inserts(3), 2)
    assert database.execute("TABLE copy") == [(1,)]
    apply(inserts(2), 1)
    apply(inserts(3), 2)
    assert database.execute("TABLE copy") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("unlogged", [UNLOGGED_TABLE, UNLOGGED_PARTITION], ids=["table", "partition"])
def test_a_table_that_a_crash_would_empty_is_refused(database: Database, tmp_path: Path, unlogged: str) -> None:
    database.execute(unlogged)
    apply = sink(database, tmp_path)
    with pytest.raises(TableError, match="is UNLOGGED: after a crash") as refused:
        apply(inserts(1), 0)
    (mended,) = re.findall("Run (ALTER TABLE .*); if", str(refused.value))
    database.execute(mended)
    apply(inserts(1), 0)
    assert database.execute("TABLE copy") == [(1,)]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_table_with_a_rule_that_takes_rows_away_is_refused(
    database: Database, apply: PostgresSink, rule: str
) -> None:
    """PostgreSQL does not refuse ON CONFLICT where a rule does nothing instead of an INSERT: the rows would be lost."""
    database.execute(f'CREATE RULE "It\'s" AS {rule}')
    with pytest.raises(TableError, match=r"has the rule \"It's\" on .* would not be written to it") as refused:
        apply(inserts(2), 1)
    (mended,) = re.findall("Run (DROP RULE .*)", str(refused.value))
    database.execute(mended)
    apply(inserts(2), 1)
    assert database.execute("TABLE copy") == [(1,), (2,)]


def test_batches_without_rows_that_were_left_out_are_reported_as_such(database: Database, apply: PostgresSink) -> None:
    with pytest.raises(StateError, match="was not given every batch") as refused:
        apply(inserts(2), 3)
    (mended,) = re.findall("run (UPDATE .*); else", str(refused.value))
    database.execute(mended)
    apply(inserts(2), 3)
    assert database.execute("SELECT batch_id FROM backfill_batches") == [(3,)]


def test_a_batch_that_was_applied_outlives_a_crash_of_the_server(
    start_postgres: Callable[..., LocalServer], tmp_path: Path
) -> None:
    """Even where commits do not wait for the disk, because Spark does not give the batch again."""
    server = start_postgres(synchronous_commit="off", wal_writer_delay="10s")
    database = Database(server, "postgres")
    database.execute("SET synchronous_commit = on; CREATE TABLE copy (id int PRIMARY KEY)")
    apply = sink(database, tmp_path)
    for number in range(2):
        apply(inserts(number), number)
    server.stop("immediate")
    server.start()
    assert database.execute("TABLE copy") == [(0,), (1,)]


def test_the_rows_of_a_table_that_inherits_from_the_copy_stay(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE copy (id int PRIMARY KEY); CREATE UNLOGGED TABLE heir () INHERITS (copy); "
        "INSERT INTO heir VALUES (1), (2)"
    )
    apply = sink(database, tmp_path)
    for number, kind in enumerate(["insert", "delete", "truncate"]):
        apply(batch_of({"id": 1, "_change_type": kind}), number)
        assert database.execute("SELECT * FROM ONLY copy") == ([(1,)] if kind == "insert" else [])
    start_over(url=database.url(tmp_path), table="copy", query="t")
    assert database.execute("TABLE heir ORDER BY id") == [(1,), (2,)]


def test_each_query_has_batches_of_its_own_and_none_goes_back(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply, other = (sink(database, tmp_path, query=query) for query in ("a", "b"))
    apply(inserts(1), 0)
    apply(Rows(inserts(1).table.slice(1)), 1)
    with pytest.raises(StateError, match=r"has applied batch 1, .* batch 0"):
        apply(inserts(1), 0)
    other(inserts(1), 0)
    recorded = "SELECT query, target, batch_id FROM backfill_batches ORDER BY query"
    copy = '"public"."copy"'
    assert database.execute(recorded) == [("a", copy, 1), ("b", copy, 0)]


def test_a_new_checkpoint_under_the_same_name_wants_an_empty_table(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE copy (id int PRIMARY KEY)")
    apply = sink(database, tmp_path)
    apply(inserts(1, 2), 0)
    other = batch_of({"id": 2, "_commit_version": 8}, {"id": 3, "_commit_version": 8})
    with pytest.raises(StateError, match="has applied batch 0, and now it should apply batch 0 with other rows"):
        apply(other, 0)
    assert database.execute("TABLE copy") == [(1,), (2,)]
    start_over(url=database.url(tmp_path), table="copy", query="t")
    assert database.execute("TABLE copy") == database.execute("TABLE backfill_batches") == []
    apply(other, 0)
    assert database.execute("TABLE copy") == [(2,), (3,)]


@pytest.mark.parametrize(
    "taken_away",
    [
        "CREATE RULE r AS ON INSERT TO backfill_batches DO INSTEAD NOTHING",
        """CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
           CREATE TRIGGER r BEFORE INSERT ON backfill_batches FOR EACH ROW EXECUTE FUNCTION f()""",
    ],
    ids=["by a rule", "by a trigger"],
)
@pytest.mark.usefixtures("apply")
def test_a_record_that_takes_no_rows_is_named(taken_away: str, database: Database, tmp_path: Path) -> None:
    database.execute(taken_away)
    with pytest.raises(TableError, match=r'into "public"\."backfill_batches", .* Drop the rule or trigger'):
        sink(database, tmp_path, query="other")(inserts(2), 0)
    assert database.execute("TABLE copy") == [(1,)]
