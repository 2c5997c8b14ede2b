"""Where keys lie whose order only the database knows."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from backfill.upstream.postgres.session.connection import Connector, Session, one_row
from backfill.upstream.postgres.snapshot.key_space import covered_by_database
from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.tables.ranges import KeyedTable
from backfill.vnode import Key, KeyRange
from integration.database import Database

RANGES = 64
"""The number of readers that read at once, each from a place of its own."""

COMPARISONS = 8
"""Enough to find a key's place among the 128 ends of the ranges."""


@pytest.mark.parametrize("begin", [None, ("k1000",)])
@pytest.mark.parametrize("end", [None, ("K1254",)])
def test_a_key_is_compared_with_few_of_the_ends_of_many_ranges(
    begin: Key | None, end: Key | None, database: Database, rng: Random
) -> None:
    bounds: list[Key] = [(f"{rng.choice('kK')}{number}",) for number in range(1002, 1254, 2)]
    ends = [begin, *bounds, end]
    ranges = tuple(KeyRange(*pair) for pair in zip(ends[::2], ends[1::2], strict=True))
    assert len(ranges) == RANGES
    texts = [f"{rng.choice('kK')}{number}" for number in range(999, 1256)]
    keys = pa.RecordBatch.from_arrays([pa.array(texts)], names=["id"])
    with Connector.of(database.dsn).session() as session, session.transaction():
        # PostgreSQL counts the calls of functions that are not its own.
        session.execute("CREATE EXTENSION citext; SET LOCAL track_functions = 'all'")
        session.execute("CREATE TABLE t (id citext PRIMARY KEY)")
        described = read_table(session, "t")
        table = KeyedTable(described.name, partitioned=False, key=described.key)
        each = [covered_by_database(session, table, keys, (item,)).to_pylist() for item in ranges]
        before = _comparisons(session)
        found = covered_by_database(session, table, keys, ranges)
        assert 0 < _comparisons(session) - before <= len(texts) * COMPARISONS
    assert found.to_pylist() == [any(inside) for inside in zip(*each, strict=True)]


def _comparisons(session: Session) -> int:
    """How often two keys have been compared in this transaction."""
    counted = "SELECT sum(calls) FROM pg_stat_xact_user_functions WHERE funcname ~ '_(l|g)[te]$'"
    (calls,) = one_row(session.execute(counted))
    return int(calls)
