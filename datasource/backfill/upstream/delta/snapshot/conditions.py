"""Conditions on rows, in the SQL of DuckDB: which options are one, and which rows they choose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from backfill.errors import OptionsError
from backfill.upstream.delta.snapshot.querying import queried, searching
from backfill.upstream.delta.snapshot.scan import readable, scanned

_CHANGING: Final = frozenset(
    {"age", "localtime", "localtimestamp", "ago", "pg_postmaster_start_time", "pg_conf_load_time"}
)
"""Functions that depend on the moment as well: `age` of a single time; those that DuckDB knows only by their names in
SQL; and its macros, of which it does not tell.
"""

_OF_A_ROW: Final = ("Conversion Error", "Out of Range Error", "Invalid Input Error", "Mismatch Type Error")
"""How DuckDB begins where an expression has no value for a row: a cast that fails, an overflow, a division by zero."""


def require_condition(table: DeltaTable, option: str, condition: str) -> None:
    """Refuses what is no condition over the table's columns; an empty one passes."""
    if condition:
        _checked(table, option, condition)


def require_row_condition(table: DeltaTable, option: str, condition: str) -> None:
    """Refuses what is no condition on a row alone: rows are counted by it, and read by it again later."""
    if not condition:
        return
    nodes = _checked(table, option, condition)
    called = {str(node["function_name"]).lower() for node in nodes if "function_name" in node}
    named = {str(name).lower() for node in nodes for name in node.get("column_names", ())}
    # DuckDB knows current_timestamp as get_current_timestamp. Functions that are consistent for some types are so for
    # the others in a fixed time zone, which a query has here.
    names = "unnest([function_name, replace(function_name, 'get_current', 'current')])"
    always = "HAVING bool_or(stability <> 'CONSISTENT') AND NOT bool_or(stability = 'CONSISTENT')"
    found = duckdb.execute(f"SELECT {names} FROM duckdb_functions() GROUP BY function_name {always}").fetchall()
    columns = {field.name.lower() for field in table.schema().fields}
    changing = ({name for (name,) in found} | _CHANGING) & (called | named - columns)
    if changing:
        raise OptionsError(
            f"the option {option} uses {', '.join(sorted(changing))}, expected a condition that depends on nothing "
            "but the row: rows are counted by it and later read by it. Compare with a literal"
        )


def _checked(table: DeltaTable, option: str, condition: str) -> list[dict[str, Any]]:
    """The nodes of the condition as DuckDB has parsed it; refuses what is none."""
    try:
        kinds = _described(table, f"SELECT ({condition}\n) FROM feed")
        _described(table, f"SELECT 1 FROM feed WHERE ({condition}\n)")
    except duckdb.Error as error:
        raise OptionsError(
            f"the option {option} is not a condition on the table's columns in DuckDB's SQL: {error}"
        ) from None
    if kinds != ["BOOLEAN"]:
        raise OptionsError(
            f"the option {option} has the type {', '.join(kinds)}, expected a condition that is true or false"
        )
    parsed = json.loads(duckdb.execute("SELECT json_serialize_sql(?)", [f"SELECT {condition}\n"]).fetchall()[0][0])
    if parsed["error"]:  # In parentheses of its own a text may be two conditions: a) OR (b
        raise OptionsError(f"the option {option} is not one condition, but more or less")
    nodes = list(_nodes(parsed))
    if any(node.get("class") == "SUBQUERY" for node in nodes):
        raise OptionsError(
            f"the option {option} has a subselect, expected a condition that depends on nothing but the row"
        )
    return nodes


def _described(table: DeltaTable, query: str) -> list[str]:
    """The types of the columns that a query over the table has; nothing is read for that."""
    found = queried(f"DESCRIBE {query}", {"feed": scanned(table, readable(table).names, None, most=0)})
    return [str(kind) for rows in found for kind in rows["column_type"]]


def _nodes(parsed: Any) -> Iterator[dict[str, Any]]:
    """All objects of a JSON value."""
    if isinstance(parsed, dict):
        yield parsed
    for item in parsed.values() if isinstance(parsed, dict) else parsed if isinstance(parsed, list) else ():
        yield from _nodes(item)


def judged(rows: pa.RecordBatchReader, condition: str) -> Iterator[tuple[pa.RecordBatch, pa.BooleanArray]]:
    """Each batch, and for each of its rows whether the condition holds; null counts as false.

    The rows themselves do not pass through DuckDB, which would hold at least 2,048 of them.
    """
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
                    "Write it so that it is true, false or null for each row, for instance with TRY_CAST instead of "
                    "CAST"
                ) from None
            chosen: Any = found.column(0).combine_chunks()
            yield batch, chosen
