"""A partitioned table is described by its root, and all of its partitions have to log the key."""

from __future__ import annotations

import pytest

from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.tables.size import read_size
from integration.database import Database
from integration.described import PARTITIONED, Session, described, key_of, refusal
from integration.versions import require_before


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


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ("ALTER TABLE t_b1 REPLICA IDENTITY NOTHING", 'ALTER TABLE "public"."t_b1" REPLICA IDENTITY DEFAULT'),
        (
            "CREATE UNIQUE INDEX i ON t_a (v); ALTER TABLE t_a ALTER v SET NOT NULL, REPLICA IDENTITY USING INDEX i",
            '"public"."t_a" logs of an old row v, expected its key (r, id) or all of it',
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
    """Not whole rows: where the publication has a list of columns nobody could write to the partition then."""
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
