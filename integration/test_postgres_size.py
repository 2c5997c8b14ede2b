"""How many rows a table has, and how large they are, without counting them."""

from __future__ import annotations

import pytest

from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.tables.size import read_size
from integration.described import Session, described


@pytest.mark.parametrize(
    ("before", "partitions", "width"),
    [("", "", 1), ("", "", 6_000), ("ANALYZE t", "", 6_000), ("", "PARTITION BY HASH (id)", 6_000)],
)
def test_a_table_that_was_never_analyzed_with_rows_has_a_sampled_size(
    session: Session, before: str, partitions: str, width: int
) -> None:
    session.execute(f"CREATE TABLE t (id int PRIMARY KEY, v text) {partitions}")
    session.execute("ALTER TABLE t ALTER v SET STORAGE PLAIN")
    if partitions:
        session.execute("CREATE TABLE t_0 PARTITION OF t FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
    session.execute(f"ALTER TABLE {'t_0' if partitions else 't'} SET (autovacuum_enabled = false); {before}")
    table = read_table(session, "t")
    assert read_size(session, table).row_count == 1
    session.execute(f"INSERT INTO t SELECT g, repeat('x', {width}) FROM generate_series(1, 10000) g")
    size = read_size(session, table)
    assert 5_000 < size.row_count < 20_000
    assert width < size.row_bytes < 2 * (width + 100)


@pytest.mark.parametrize("partition", ["", "filled, and not analyzed"], ids=["all of it", "a half of it"])
def test_a_table_that_was_all_but_empty_when_it_was_analyzed_has_a_sampled_size(
    session: Session, partition: str
) -> None:
    kept = "PARTITION OF t FOR VALUES FROM (1) TO (100001)" if partition else "(id int PRIMARY KEY)"
    if partition:
        session.execute(
            "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
            "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (100001) TO (200001);"
            "INSERT INTO t SELECT generate_series(100001, 200000); ANALYZE t_1"
        )
    name = "t_0" if partition else "t"
    session.execute(f"CREATE TABLE {name} {kept} WITH (autovacuum_enabled = false)")
    session.execute("INSERT INTO t SELECT generate_series(1, 100000)")
    session.execute("DELETE FROM t WHERE id < 100000")
    session.execute(f"VACUUM {name}")
    session.execute("INSERT INTO t SELECT generate_series(1, 99999)")
    rows = 200_000 if partition else 100_000
    assert rows / 2 < read_size(session, read_table(session, "t")).row_count < rows * 2


def test_a_table_of_which_little_is_left_has_no_more_rows_than_that(session: Session) -> None:
    """An example is a queue of large values: taken for many small ones, they would be more than a batch may have."""
    table = described(session, "CREATE TABLE t (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = false)")
    session.execute("INSERT INTO t SELECT g, repeat('x', 1900) FROM generate_series(1, 20000) g")
    session.execute("DELETE FROM t WHERE id % 40 <> 0")
    session.execute("VACUUM ANALYZE t")
    assert read_size(session, table).row_count < 1_500
