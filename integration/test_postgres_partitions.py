"""A partitioned table is described by its root, and all of its partitions have to log the key."""

from __future__ import annotations

import pyarrow as pa
import pytest
from psycopg import sql

from backfill.adapters import open_upstream
from backfill.options import parse
from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.tables.ranges import KeyedTable
from backfill.upstream.postgres.tables.size import read_size
from backfill.vnode import KeyRange
from integration.database import Database
from integration.described import PARTITIONED, Session, described, key_of, refusal
from integration.fixtures.streams import StartStream
from integration.versions import require_before
from integration.waiting import eventually


def test_a_partitioned_table_is_described_by_its_root_and_sized_by_its_partitions(session: Session) -> None:
    table = described(
        session,
        f"""{PARTITIONED}
        INSERT INTO t SELECT g, CASE WHEN g <= 3000 THEN 'a' ELSE 'b' END, repeat('x', 100)
                      FROM generate_series(1, 10000) g;
        ANALYZE t""",
    )
    assert table.partitioned
    assert key_of(table) == ["r", "id"]
    size = read_size(session, table)
    assert size.row_count == pytest.approx(10_000, rel=0.01)
    assert 130 < size.row_bytes < 300
    assert read_size(session, read_table(session, "t_a")).row_count == pytest.approx(3_000, rel=0.01)


DAYS = """
    CREATE TABLE t (day date, id int, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
    CREATE TABLE t1 PARTITION OF t FOR VALUES FROM ('2024-01-01') TO ('2024-01-02');
    CREATE TABLE t2 PARTITION OF t FOR VALUES FROM ('2024-01-02') TO ('2024-01-03');
    CREATE TABLE t3 PARTITION OF t FOR VALUES FROM ('2024-01-03') TO ('2024-01-04');
    CREATE TABLE t4 PARTITION OF t FOR VALUES FROM ('2024-01-04') TO ('2024-01-05');
    INSERT INTO t SELECT date '2024-01-01' + day, id FROM generate_series(0, 3) day, generate_series(1, 9) id
"""


@pytest.mark.parametrize(
    ("item", "entered", "rows"),
    [
        (KeyRange(("2024-01-02", "5"), ("2024-01-03", "2")), {"t2", "t3"}, 6),
        (KeyRange(("2024-01-02", "5"), ("2024-01-02", "7")), {"t2"}, 2),
        (KeyRange(None, ("2024-01-02", "3")), {"t1", "t2"}, 12),
        (KeyRange(("2024-01-03", "8"), None), {"t3", "t4"}, 10),
    ],
    ids=["of two days", "of one", "from the beginning", "to the end"],
)
def test_only_partitions_that_have_a_part_of_a_range_are_entered(
    session: Session, item: KeyRange, entered: set[str], rows: int
) -> None:
    """With a comparison of two columns alone, all of them would be entered."""
    description = described(session, DAYS)
    table = KeyedTable(description.name, partitioned=True, key=description.key)
    counting = table.counts([item, item], [100, 3], "")
    assert session.execute(counting).fetchall() == [(rows,), (min(rows, 3),)]
    for statement in (table.select(sql.SQL("*"), item, ""), counting):
        lines = session.execute(sql.SQL("EXPLAIN ANALYZE {}").format(statement)).fetchall()
        scans = [line for (line,) in lines if " on t" in line and "never executed" not in line]
        assert {word for line in scans for word in line.split() if word in ("t1", "t2", "t3", "t4")} == entered


def test_rows_are_looked_up_in_many_partitions_by_the_index(database: Database) -> None:
    """The server assumes that each row is looked up in all partitions, and would rather read the whole table."""
    database.execute("CREATE TABLE t (id bigint, v text, PRIMARY KEY (id)) PARTITION BY HASH (id)")
    database.execute(
        "DO $$ BEGIN FOR i IN 0..99 LOOP EXECUTE format('CREATE TABLE t_%s PARTITION OF t "
        "FOR VALUES WITH (MODULUS 100, REMAINDER %s)', i, i); END LOOP; END $$"
    )
    database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 50000) i; ANALYZE t")
    keys = pa.record_batch({"id": pa.array(range(500), pa.int64())})
    query = "SELECT sum(idx_scan)::int8, sum(seq_scan)::int8 FROM pg_stat_user_tables WHERE relname ~ '^t'"
    [(_, before)] = database.execute(query)
    upstream = open_upstream(parse({**database.options, "dbtable": "t"}))
    try:
        pin = upstream.snapshot_epoch(None, max_changes=9).pin
        assert pin is not None
        assert sum(rows.num_rows for rows in upstream.lookup(pin, keys)) == 499
    finally:
        upstream.close()
    eventually(lambda: database.execute(query) == [(500, before)])  # A session tells of its scans when it ends.


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ("ALTER TABLE t_b1 REPLICA IDENTITY NOTHING", 'ALTER TABLE "public"."t_b1" REPLICA IDENTITY DEFAULT'),
        (
            "CREATE UNIQUE INDEX i ON t_a (v); ALTER TABLE t_a ALTER v SET NOT NULL, REPLICA IDENTITY USING INDEX i",
            '"public"."t_a" logs v of an old row, expected its key (r, id) or all of it',
        ),
        ("ALTER TABLE t_a SET UNLOGGED", 'ALTER TABLE "public"."t_a" SET LOGGED'),
        ("ALTER TABLE t REPLICA IDENTITY NOTHING", 'ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT'),
    ],
)
def test_a_partition_that_does_not_log_the_key_is_refused_by_name(
    session: Session, statements: str, words: str
) -> None:
    session.execute(PARTITIONED)
    assert words in refusal(session, statements)


def test_a_partition_is_advised_to_log_its_key_by_its_own_index(session: Session) -> None:
    """It is not advised to log whole rows: with a list of columns in the publication nobody could then write to it."""
    table = """
        CREATE TABLE t (id int NOT NULL, "B" int NOT NULL, v int) PARTITION BY RANGE (id);
        CREATE UNIQUE INDEX u ON t ("B", id); ALTER TABLE t REPLICA IDENTITY USING INDEX u;
        CREATE TABLE "T a" PARTITION OF t FOR VALUES FROM (0) TO (9);
        CREATE UNIQUE INDEX other ON "T a" (id); CREATE UNIQUE INDEX wider ON "T a" ("B", id, v);
        ALTER INDEX "T a_B_id_idx" RENAME TO "I"
    """
    advice = 'ALTER TABLE "public"."T a" REPLICA IDENTITY USING INDEX "I"'
    assert advice in refusal(session, table)
    session.execute(advice)
    assert key_of(read_table(session, "t")) == ["B", "id"]


def test_an_unlogged_partitioned_table_has_to_be_made_again(session: Session, database: Database) -> None:
    require_before(database, 180_000, "unlogged partitioned tables")
    unlogged = "CREATE UNLOGGED TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)"
    assert "Make it again without UNLOGGED" in refusal(session, unlogged)


def test_a_partition_that_logs_whole_rows_logs_any_key(session: Session) -> None:
    assert key_of(described(session, f"{PARTITIONED} ALTER TABLE t_a REPLICA IDENTITY FULL")) == ["r", "id"]


TENANTS = """
    CREATE TABLE t (tenant int, day int, id int, v text DEFAULT 'v', PRIMARY KEY ({key})) PARTITION BY RANGE ({by});
    CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (1, MINVALUE) TO (1, MAXVALUE);
    CREATE TABLE t_3 PARTITION OF t FOR VALUES FROM (3, MINVALUE) TO (3, MAXVALUE);
    CREATE TABLE t_others PARTITION OF t DEFAULT;
    INSERT INTO t (tenant, day, id)
    SELECT tenant, day, day * 100 + id FROM generate_series(0, 4) tenant, generate_series(1, 9) day,
                                            generate_series(1, 20) id;
    ANALYZE t
"""


@pytest.mark.parametrize(
    ("key", "by"), [("tenant, id", "tenant, id"), ("tenant, day, id", "tenant, day")], ids=["two", "three"]
)
@pytest.mark.parametrize("rows", [50, 400])
def test_all_rows_of_a_default_partition_come(
    database: Database, start_stream: StartStream, key: str, by: str, rows: int
) -> None:
    """The server passes over it by mistake where rows of one tenant alone are asked for."""
    database.execute(TENANTS.format(key=key, by=by))
    run = start_stream("t", key=tuple(key.split(", ")), maxRowsPerTrigger=str(rows), vnodeCount="16")
    run.batch()
    database.execute("UPDATE t SET v = 'w' WHERE id % 7 = 0")
    run.finish()
