"""Rows of one version of a table by key range, in key order; files without such rows are left out.

`deltalake` leaves out files by their statistics, and knows deletion vectors, partitions, renamed and added columns.
Its statistics are only trusted to leave out files: which rows lie in a range is decided over the rows themselves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.schema import PrimitiveType

from backfill.errors import OptionsError
from backfill.upstream import TableSize
from backfill.upstream.delta.keys import KeyColumns
from backfill.upstream.delta.passes import passes
from backfill.upstream.delta.querying import queried, quoted, searching
from backfill.upstream.delta.sorted_keys import require_keys
from backfill.upstream.delta.sorting import in_order
from backfill.vnode import Coverage, KeyRange

_OF_A_ROW: Final = ("Conversion Error", "Out of Range Error", "Invalid Input Error", "Mismatch Type Error")
"""How DuckDB begins where an expression has no value for a row: a cast that fails, an overflow, a division by zero."""

_CHANGING: Final = frozenset(
    {"age", "localtime", "localtimestamp", "ago", "pg_postmaster_start_time", "pg_conf_load_time"}
)
"""What depends on the moment as well: of one time, its age; what DuckDB knows by its name in SQL alone; and its macros,
of which it does not tell.
"""

_SESSION: Final = {"datafusion.execution.parquet.coerce_int96": "us"}
"""Spark writes times as INT96, unless told otherwise. Those before 1677 and after 2262 `deltalake` reads as others,
because it counts them in nanoseconds, but for a query that says how."""

_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 8192
"""About how many bytes of rows are read at a time, and the most rows, which is DataFusion's own: several such batches
are in memory at once."""

_LOOKED_AT: Final = (16, 1000)
_LOOKED_AT_BYTES: Final = 8 << 20
"""How many rows tell how large a row is: a few, and more if those take no more than about so many bytes."""


def rows_within(
    table: DeltaTable, columns: pa.Schema, key: KeyColumns, ranges: Sequence[KeyRange], condition: str
) -> Iterator[pa.RecordBatch]:
    """The rows of each range in turn, in key order and with these columns; only those for which the condition holds, if
    there is one.
    """
    rows = Rows.of(table, columns, condition)
    for together in passes(table, key, ranges):
        yield from in_order(_inside(rows, key, together), columns, key.names)


def _inside(rows: Rows, key: KeyColumns, coverage: Coverage) -> Iterator[pa.RecordBatch]:
    for batch in rows.where(key.predicate(coverage)):
        chosen = batch.filter(key.covered(batch.select(key.names), coverage))
        require_keys(chosen.select(key.names))
        yield chosen


@dataclass(frozen=True, slots=True)
class Rows:
    """These columns of a table's rows for which the condition holds, if there is one; read so many at a time."""

    table: DeltaTable
    columns: pa.Schema
    condition: str
    batch_rows: int

    @classmethod
    def of(cls, table: DeltaTable, columns: pa.Schema, condition: str) -> Rows:
        """The condition may name columns that are not carried."""
        whole: Any = table.schema().to_arrow() if condition else columns
        return cls(table, columns, condition, _batch_rows(table, pa.schema(whole)))

    def where(self, predicate: str | None) -> Iterator[pa.RecordBatch]:
        """Those for which the predicate holds, and maybe others, in no order."""
        names = None if self.condition else self.columns.names
        found = scanned(self.table, names, predicate, batch_rows=self.batch_rows)
        if self.condition:
            yield from _chosen(found, self.columns, self.condition)
        else:
            for batch in found:
                yield batch.cast(self.columns)


def _chosen(rows: pa.RecordBatchReader, columns: pa.Schema, condition: str) -> Iterator[pa.RecordBatch]:
    """DuckDB says of each row whether it is chosen. It would hold 2,048 rows at least, were it to give them."""
    with searching() as session:
        for batch in rows:
            session.register("feed", pa.Table.from_batches([batch]))
            try:
                found = session.sql(f"SELECT ({condition}\n) FROM feed").to_arrow_table()
            except duckdb.Error as error:
                kind = str(error).partition(":")[0]
                if kind not in _OF_A_ROW:
                    raise
                # What follows the kind may be the row's value.
                raise OptionsError(
                    f"the condition {condition!r} (filter or snapshotFilter) fails for a row of the table: {kind}. "
                    "Write it so that it is true, false or null for each row, such as with TRY_CAST in place of CAST"
                ) from None
            yield batch.select(columns.names).cast(columns).filter(found.column(0).combine_chunks())


def require_condition(table: DeltaTable, option: str, condition: str) -> None:
    """Refuses what is no condition over the table's columns; none at all is one."""
    if not condition:
        return
    try:
        kinds = _described(table, f"SELECT ({condition}\n) FROM feed")
        _described(table, f"SELECT 1 FROM feed WHERE ({condition}\n)")
    except duckdb.Error as error:
        raise OptionsError(
            f"the option {option} is no condition over the columns of the table, in the SQL of DuckDB: {error}"
        ) from None
    if kinds != ["BOOLEAN"]:
        raise OptionsError(f"the option {option} is of the type {', '.join(kinds)}, and a condition is true or false")


def _described(table: DeltaTable, query: str) -> list[str]:
    """The types of the columns that a query over the table has; nothing is read for that."""
    found = queried(f"DESCRIBE {query}", {"feed": scanned(table, None, None, most=0)})
    return [str(kind) for rows in found for kind in rows["column_type"]]


def require_row_condition(table: DeltaTable, option: str, condition: str) -> None:
    """Refuses what is no condition on a row alone: rows are counted by it, and read by it again later."""
    if not condition:
        return
    require_condition(table, option, condition)
    parsed = json.loads(duckdb.execute("SELECT json_serialize_sql(?)", [f"SELECT {condition}\n"]).fetchall()[0][0])
    if parsed["error"]:  # In parentheses of its own a text may be two conditions: a) OR (b
        raise OptionsError(f"the option {option} is no condition, but more or less than one")
    nodes = list(_nodes(parsed))
    called = {str(node["function_name"]).lower() for node in nodes if "function_name" in node}
    named = {str(name).lower() for node in nodes for name in node.get("column_names", ())}
    # DuckDB knows current_timestamp as get_current_timestamp. Functions that are consistent for some types are so for
    # the others in a fixed time zone, which a query has here.
    names = "unnest([function_name, replace(function_name, 'get_current', 'current')])"
    always = "HAVING bool_or(stability <> 'CONSISTENT') AND NOT bool_or(stability = 'CONSISTENT')"
    found = duckdb.execute(f"SELECT {names} FROM duckdb_functions() GROUP BY function_name {always}").fetchall()
    columns = {field.name.lower() for field in table.schema().fields}
    changing = ({name for (name,) in found} | _CHANGING) & (called | named - columns)
    if any(node.get("class") == "SUBQUERY" for node in nodes):
        changing.add("a subselect")
    if changing:
        raise OptionsError(
            f"the option {option} has {', '.join(sorted(changing))} in it, and is to depend on nothing but the row: "
            "rows are counted by it, and read by it again later. Compare with a literal"
        )


def _nodes(parsed: Any) -> Iterator[dict[str, Any]]:
    """All objects of a JSON value."""
    if isinstance(parsed, dict):
        yield parsed
    for item in parsed.values() if isinstance(parsed, dict) else parsed if isinstance(parsed, list) else ():
        yield from _nodes(item)


def rows_of(table: DeltaTable, columns: pa.Schema, key: KeyColumns, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows with these keys, in no order."""
    predicate = key.predicate((key.around(keys),))
    found = scanned(table, columns.names, predicate, batch_rows=_batch_rows(table, columns))
    selected, names = (", ".join(map(quoted, each)) for each in (columns.names, key.names))
    query = f"SELECT {selected} FROM feed SEMI JOIN keys USING ({names})"
    for batch in queried(query, {"feed": found, "keys": pa.Table.from_batches([keys])}):
        yield batch.cast(columns)


def scanned(
    table: DeltaTable,
    names: Sequence[str] | None,
    predicate: str | None,
    *,
    batch_rows: int = _BATCH_ROWS,
    most: int | None = None,
) -> pa.RecordBatchReader:
    """The rows for which the predicate holds, and maybe others, in no order; all columns where none is named.

    So many at a time, and no more than `most` of them, if that is given.
    """
    selected = "*" if names is None else ", ".join(map(quoted, names))
    query = f"SELECT {selected} FROM feed" + ("" if predicate is None else f" WHERE {predicate}")
    query += "" if most is None else f" LIMIT {most}"
    session = {**_SESSION, "datafusion.execution.batch_size": str(batch_rows)}
    found = pa.RecordBatchReader.from_stream(QueryBuilder(session).register("feed", table).execute(query))
    written = {field.name for field in table.schema().fields if field.type == PrimitiveType("string")}
    texts = written.intersection(found.schema.names, table.metadata().partition_columns)
    return _with_nulls(found, texts) if texts else found


def _batch_rows(table: DeltaTable, columns: pa.Schema) -> int:
    """How many rows of these columns are read at a time. No file is looked at where their types tell."""
    if all(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) for kind in columns.types):
        size = sum(kind.bit_width for kind in columns.types) // 8
    else:
        try:
            size = row_bytes(table, columns) or 1
        except Exception:  # noqa: BLE001 - deltalake raises Exception itself. What matters the rows' reader will meet.
            size = in_files(table).row_bytes
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, size)))


def row_bytes(table: DeltaTable, columns: pa.Schema) -> int | None:
    """About how many bytes these columns of a row take in memory, by the first rows found; None without any."""
    size = rows = 0
    for most in _LOOKED_AT:
        if rows and size * most > rows * _LOOKED_AT_BYTES:
            break
        # A text that is there many times is one for `deltalake`, and many as a column of its type.
        found = [batch.cast(columns) for batch in scanned(table, columns.names, None, batch_rows=most, most=most)]
        rows, size = sum(batch.num_rows for batch in found), sum(batch.nbytes for batch in found)
    return max(1, size // rows) if rows else None


def in_files(table: DeltaTable) -> TableSize:
    """By the files' statistics, which do not count rows that a deletion vector deletes, and as they are compressed."""
    actions = pa.table(table.get_add_actions())
    size = int(pc.sum(actions["size_bytes"]).as_py() or 0)
    rows = int(pc.sum(actions["num_records"]).as_py() or 0) if "num_records" in actions.column_names else 0
    rows = max(1, rows or size // 100)
    return TableSize(rows, max(1, size // rows))


def _with_nulls(found: pa.RecordBatchReader, texts: Collection[str]) -> pa.RecordBatchReader:
    """A partition's empty text as what it is in Delta's log (protocol, Partition Value Serialization): null."""
    fields = [pa.field(field.name, pa.string()) if field.name in texts else field for field in found.schema]
    schema = pa.schema(fields)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in found:
            arrays: list[pa.Array[Any]] = list(batch.columns)
            for at, name in enumerate(batch.schema.names):
                if name in texts:
                    values = arrays[at].cast(pa.string())
                    arrays[at] = pc.if_else(pc.equal(values, pa.scalar("")), pa.scalar(None, pa.string()), values)
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
