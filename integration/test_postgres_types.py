"""The same value comes out of the snapshot and of the change log, and the database agrees that it is the value.

The two ways into Arrow share nothing in the server: binary COPY through the driver, and pgoutput's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any, TypeAlias

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from backfill.errors import ValueOutOfRangeError
from backfill.upstream.postgres.decoder.pgoutput import Decoder
from backfill.upstream.postgres.decoder.relation import WantedColumn
from backfill.upstream.postgres.description import TableDescription
from backfill.upstream.postgres.session.connection import Connector
from backfill.upstream.postgres.tables.catalog import read_table
from backfill.upstream.postgres.values.conversion import encode_text, from_change, from_snapshot
from backfill.upstream.postgres.values.types import MappedColumn, Source, map_column, output_text, snapshot_expression
from integration.database import Database, temporary_database
from integration.servers import Server
from integration.values import BEYOND, DOMAINS, LISTS, OTHERS, SCALARS, Case
from integration.versions import require_version

RANDOM_VALUES = 200
SLOT = "types"
READ = sql.Identifier("read")

Array: TypeAlias = "pa.Array[Any]"
Session: TypeAlias = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(scope="module")
def typed_database(postgres: Server) -> Iterator[Database]:
    """One database for the module; each test has its own schema in it."""
    with temporary_database(postgres) as database:
        yield database


@dataclass(frozen=True)
class Written:
    """A table `t (id, v)` whose values were inserted while the slot listened."""

    connector: Connector
    session: Session
    table: TableDescription
    type: str

    def mapped(self, override: str | None = None) -> MappedColumn:
        column = self.table.column("v")
        assert column is not None
        return map_column(column, override)

    def snapshot(self, mapped: MappedColumn) -> Array:
        query = sql.SQL("SELECT {} FROM {} ORDER BY id").format(
            snapshot_expression(mapped), self.table.name.identifier()
        )
        return self._fetch(partial(from_snapshot, sent=""), mapped, query.as_string(None))

    def _fetch(self, convert: Any, mapped: MappedColumn, query: str) -> Array:
        with self.connector.arrow_session() as session:
            # Small batches, so that arrays begin and end anywhere.
            batches = session.read(query, batch_bytes=512)
            return pa.concat_arrays([convert(mapped, batch.column(0)) for batch in batches])

    def changes(self, mapped: MappedColumn) -> Array:
        wanted = WantedColumn("v", 2, mapped.type_oid, key=False, decode=lambda text: from_change(mapped, text))
        decoder = Decoder(self.table.oid, [wanted], lambda xids, _: np.ones(len(xids), np.bool_))
        query = (
            f"SELECT data FROM pg_logical_slot_peek_binary_changes('{SLOT}', NULL, NULL, "
            "'proto_version', '1', 'publication_names', 'types')"
        )
        return self._fetch(lambda _, data: new_values(decoder, data), mapped, query)

    def wrong(self, values: Array, output: sql.Composable, read: sql.Composable) -> list[int]:
        """The rows in which the database has another value than the one read, by its own output function."""
        query = sql.SQL(
            "SELECT id FROM {table} JOIN unnest(%s::int8[], %s::text[]) AS u (id, read) USING (id) "
            "WHERE {output} IS DISTINCT FROM {read}"
        ).format(table=self.table.name.identifier(), output=output, read=read)
        ((rows,),) = self.session.execute("SELECT count(*) FROM t").fetchall()
        assert rows == len(values)
        return [row[0] for row in self.session.execute(query, [list(range(len(values))), literals(values)])]


@pytest.fixture
def written(case: Case, typed_database: Database, rng: Random) -> Iterator[Written]:
    require_version(typed_database, case.since, case.type)
    connector = Connector.of(typed_database.dsn)
    with connector.session() as session:
        session.execute(b"DROP SCHEMA IF EXISTS public CASCADE; CREATE SCHEMA public")
        session.execute(case.setup.encode())
        session.execute(f"CREATE TABLE t (id int8 PRIMARY KEY, v {case.type})".encode())
        with listening(session):
            insert(session, case, case.values(rng, RANDOM_VALUES))
            yield Written(connector, session, read_table(session, "t"), case.type)


@contextmanager
def listening(session: Session) -> Iterator[None]:
    session.execute("CREATE PUBLICATION types FOR TABLE t")
    session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
    try:
        yield
    finally:
        session.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
        session.execute("DROP PUBLICATION types")


def insert(session: Session, case: Case, values: Sequence[str | None]) -> None:
    statement = f"INSERT INTO t SELECT id, CAST(v AS {case.type}) FROM unnest(%s::int8[], %s::text[]) AS u (id, v)"
    try:
        session.execute(statement.encode(), [list(range(len(values))), values])
    except psycopg.errors.FeatureNotSupported as error:
        pytest.skip(f"this server was built without it: {error}")


def new_values(decoder: Decoder, messages: Array) -> Array:
    rows: Any = decoder.feed(messages).rows.column("new")
    values: Array = rows.field("v")
    return values


def literals(values: Array) -> Sequence[str | None]:
    """Each value as text for the input function."""
    if not pa.types.is_list(values.type):
        return encode_text(values).to_pylist()
    nested: Any = values
    elements = iter(encode_text(nested.flatten()).to_pylist())
    lengths = nested.value_lengths().to_pylist()
    return [None if length is None else literal(list(islice(elements, length))) for length in lengths]


def literal(elements: Sequence[str | None]) -> str:
    return "{" + ",".join("NULL" if each is None else quoted(each) for each in elements) + "}"


def quoted(element: str) -> str:
    return '"' + element.replace("\\", "\\\\").replace('"', '\\"') + '"'


def named(cases: Sequence[Case]) -> list[Any]:
    return [pytest.param(case, id=f"{case.type}-{index}") for index, case in enumerate(cases)]


@pytest.mark.parametrize("case", named([*SCALARS, *OTHERS, *DOMAINS, *LISTS]))
def test_a_value_is_the_same_in_the_snapshot_in_the_change_log_and_in_the_database(written: Written) -> None:
    mapped = written.mapped()
    snapshot, changes = written.snapshot(mapped), written.changes(mapped)
    assert snapshot.type == changes.type == mapped.arrow
    snapshot.validate(full=True)
    changes.validate(full=True)
    assert_same(snapshot, changes)
    output = output_text(sql.Identifier("v"), mapped.output)
    column = written.table.column("v")
    assert column is not None
    if pa.types.is_string(mapped.arrow) and mapped.source is Source.TEXT:
        assert not written.wrong(snapshot, output, READ)
    if column.type.delimiter == "," and "box" not in written.type:
        # A type that is no text goes back through its input function, without its modifier.
        back = sql.SQL("CAST(read AS {})").format(column.type.name.identifier())
        assert not written.wrong(snapshot, output, output_text(back, mapped.output))


@pytest.mark.parametrize("case", named([*SCALARS, *OTHERS, *DOMAINS, *LISTS, *BEYOND]))
def test_every_type_can_be_read_as_the_text_that_the_database_gives(written: Written) -> None:
    mapped = written.mapped("STRING")
    snapshot, changes = written.snapshot(mapped), written.changes(mapped)
    assert snapshot.type == pa.string()
    assert_same(snapshot, changes)
    assert not written.wrong(snapshot, output_text(sql.Identifier("v"), mapped.output), READ)


@pytest.mark.parametrize("case", named([replace(case, special=[value]) for case in BEYOND for value in case.special]))
def test_a_value_that_spark_cannot_hold_stops_both_ways_and_each_says_what_helps(written: Written) -> None:
    mapped = written.mapped()
    with pytest.raises(ValueOutOfRangeError) as in_snapshot:
        written.snapshot(mapped)
    with pytest.raises(ValueOutOfRangeError) as in_changes:
        written.changes(mapped)
    what, to_do = in_snapshot.value.message.split(". ", 1)
    assert what in in_changes.value.message
    assert "column 'v'" in what
    assert to_do.startswith("Mend the row")
    assert "also after the row is mended" in in_changes.value.message
    for error in (in_snapshot.value, in_changes.value):
        assert '"v STRING"' in error.message


@pytest.mark.parametrize("case", named([Case("float4", ["1", "NaN"]), Case("float8", ["1", "NaN"])]))
def test_a_nan_has_the_same_bits_whichever_way_it_comes(written: Written) -> None:
    written.session.execute(f"INSERT INTO t SELECT count(*), 'inf'::{written.type} - 'inf' FROM t".encode())
    mapped = written.mapped()
    bits = pa.uint32() if written.type == "float4" else pa.uint64()
    assert written.snapshot(mapped).view(bits).equals(written.changes(mapped).view(bits))


@pytest.mark.parametrize("case", named([Case("numeric", ["1", "-0.0000000001", "9" * 28, "1.5000"])]))
def test_a_numeric_is_read_with_the_digits_one_asks_for(written: Written) -> None:
    mapped = written.mapped("DECIMAL(38,10)")
    snapshot, changes = written.snapshot(mapped), written.changes(mapped)
    assert snapshot.type == pa.decimal128(38, 10)
    assert_same(snapshot, changes)
    assert not written.wrong(snapshot, sql.SQL("v"), sql.SQL("read::numeric"))


@pytest.mark.parametrize("case", named([Case("numeric", [value]) for value in ("0.00000000001", "1e28", "NaN")]))
def test_a_numeric_with_more_digits_than_one_asked_for_is_refused(written: Written) -> None:
    mapped = written.mapped("DECIMAL(38,10)")
    for read in (written.snapshot, written.changes):
        with pytest.raises(ValueOutOfRangeError, match="NaN, infinity, or more digits"):
            read(mapped)


def assert_same(one: Array, other: Array) -> None:
    """Equal to the last bit: NaN is NaN, and -0 is not 0."""
    assert one.type == other.type
    assert one.is_null().equals(other.is_null())
    assert encoded(one) == encoded(other)


def encoded(values: Array) -> list[str | None]:
    return list(literals(values))
