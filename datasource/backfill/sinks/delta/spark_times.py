"""Files of a Delta table whose times would be others after a MERGE.

Spark writes times as INT96, unless told otherwise. `deltalake` (1.6) counts those in nanoseconds where it writes the
rows of such a file anew: then those before 1677 and after 2262 are others, in rows of which the batch has none as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from backfill.errors import TableError
from backfill.upstream.delta.files.location import FileLocation, Files
from backfill.upstream.delta.files.statistics import statistic

_TIME: Final = PrimitiveType("timestamp")
_EARLIEST, _LATEST = (pa.scalar(datetime(year, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC")) for year in (1678, 2262))


@dataclass(frozen=True, slots=True)
class SparkTimes:
    """`kept` are the files that have been looked at and may be written anew: a file never changes."""

    storage_options: Mapping[str, str] = field(repr=False)
    kept: set[str] = field(default_factory=set, repr=False, compare=False)

    def require_kept(self, table: DeltaTable) -> None:
        """TableError where the table has such a file."""
        parts = table.metadata().partition_columns
        names = [item.name for item in table.schema().fields if item.name not in parts and _has_time(item.type)]
        if not names:
            return
        files, doubtful = Files(table.table_uri, self.storage_options), set(_doubtful(table, names))
        self.kept.intersection_update(doubtful)  # Else they would become ever more.
        for path in sorted(doubtful - self.kept):
            location = FileLocation.of(path)
            with files.open(location) as opened:
                if any(map(_are_far, _old_times(pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")))):
                    raise TableError(
                        f"the file {location} of the Delta table {table.table_uri} was written by Spark with times "
                        "before 1678 or after 2261 in Parquet's INT96, and deltalake would make others of them. Write "
                        "the table anew with Spark's setting spark.sql.parquet.outputTimestampType = TIMESTAMP_MICROS, "
                        f"as by INSERT OVERWRITE delta.`{table.table_uri}` SELECT * FROM delta.`{table.table_uri}`; "
                        "and let whoever else writes to it, as by OPTIMIZE, have that setting as well"
                    )
            self.kept.add(path)


def _has_time(kind: Any) -> bool:
    match kind:
        case ArrayType():
            return _has_time(kind.element_type)
        case MapType():
            return _has_time(kind.key_type) or _has_time(kind.value_type)
        case StructType():
            return any(_has_time(item.type) for item in kind.fields)
    return bool(kind == _TIME)


def _doubtful(table: DeltaTable, names: list[str]) -> Iterator[str]:
    """The files of which the statistics do not say that all times of these columns are near."""
    actions = pa.table(table.get_add_actions(flatten=True))
    near: Any = pa.repeat(pa.scalar(True), actions.num_rows)
    for name in names:
        least, greatest, nulls = (statistic(actions, f"{kind}.{name}") for kind in ("min", "max", "null_count"))
        if least is None or greatest is None or nulls is None:  # There are none of a list or a struct.
            near = pa.repeat(pa.scalar(False), actions.num_rows)
            break
        within: Any = pc.and_(pc.greater_equal(least, _EARLIEST), pc.less(greatest, _LATEST))
        none = pc.equal(nulls, actions["num_records"])
        near = pc.and_(near, pc.or_kleene(within, none))
    for path in actions["path"].filter(pc.invert(pc.fill_null(near, False))):
        yield str(path)


def _old_times(file: pq.ParquetFile) -> Iterator[pa.Array[Any]]:
    """The times that are INT96, from wherever they are nested."""
    leaves = [file.schema.column(at) for at in range(len(file.schema))]
    old = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
    for batch in file.iter_batches(columns=old) if old else ():
        for column in batch.columns:
            yield from _times(column)


def _times(column: pa.Array[Any]) -> Iterator[pa.Array[Any]]:
    kind: Any = column.type
    if pa.types.is_struct(kind):
        for part in column.flatten():  # type: ignore[attr-defined]
            yield from _times(part)
    elif pa.types.is_map(kind):
        yield from _times(column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    elif pa.types.is_list(kind):
        yield from _times(pc.list_flatten(column))
    elif pa.types.is_timestamp(kind):
        yield column


def _are_far(times: pa.Array[Any]) -> bool:
    zoned = times.cast(_EARLIEST.type)
    return bool(pc.any(pc.or_(pc.less(zoned, _EARLIEST), pc.greater_equal(zoned, _LATEST))).as_py())
