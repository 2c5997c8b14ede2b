"""Files of a Delta table in which a MERGE would change times or days.

Spark writes times as INT96, unless told otherwise. Where `deltalake` (1.6) writes the rows of such a file anew, it
counts these in nanoseconds: times before 1677 and after 2262 become others, also in rows that are not in the batch.

Before version 3, and with its settings …RebaseModeInWrite = LEGACY, Spark counts days before 15 October 1582 by the
Julian calendar, and times before 1900 by that or by the old local time of its zone. The file says so, and Spark reads
it accordingly; nothing says so of rows that are written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from backfill.errors import TableError
from backfill.upstream.delta.files.location import FileLocation, Files
from backfill.upstream.delta.files.statistics import statistics

_KINDS: Final = (PrimitiveType("timestamp"), PrimitiveType("date"))
_EARLIEST, _OF_ONE_CALENDAR, _LATEST = (
    pa.scalar(datetime(year, 1, 1, tzinfo=UTC), pa.timestamp("us", "UTC")) for year in (1678, 1900, 2262)
)
_GREGORIAN: Final = pa.scalar(date(1582, 10, 15))

_VERSION: Final = b"org.apache.spark.version"
_CALENDARS: Final = (
    (("INT96",), b"org.apache.spark.legacyINT96", (b"1.", b"2.", b"3.0.")),
    (("TIMESTAMP", "DATE"), b"org.apache.spark.legacyDateTime", (b"1.", b"2.")),
)
"""For kinds of values in Parquet: the mark that Spark leaves in a file which has them as before version 3, and the
versions whose files always have them so. Spark reads them by these (`DataSourceUtils.datetimeRebaseSpec`,
`int96RebaseSpec`).
"""


@dataclass(frozen=True, slots=True)
class SparkTimes:
    """Looks for such files. `kept` are those that may be written anew; a file never changes, so one look is enough."""

    storage_options: Mapping[str, str] = field(repr=False)
    kept: set[str] = field(default_factory=set, repr=False, compare=False)

    def require_kept(self, table: DeltaTable) -> None:
        """Raises TableError where the table has such a file."""
        parts = table.metadata().partition_columns
        names = [item.name for item in table.schema().fields if item.name not in parts and _has_time(item.type)]
        if not names:
            return
        files, doubtful = Files(table.table_uri, self.storage_options), set(_doubtful(table, names))
        self.kept.intersection_update(doubtful)  # Else there would be ever more.
        for path in sorted(doubtful - self.kept):
            location = FileLocation.of(path)
            with files.open(location) as opened:
                wrong = _wrong(pq.ParquetFile(opened, coerce_int96_timestamp_unit="us"))
            if wrong:
                found, setting = wrong
                raise TableError(
                    f"the file {location} of the Delta table {table.table_uri} was written by Spark with {found}, "
                    f"which deltalake would change. Rewrite the table with Spark's setting {setting}, as by INSERT "
                    f"OVERWRITE delta.`{table.table_uri}` SELECT * FROM delta.`{table.table_uri}`; and use that "
                    "setting in all other writers of the table, as for OPTIMIZE"
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
    return kind in _KINDS


def _doubtful(table: DeltaTable, names: list[str]) -> Iterator[str]:
    """The files whose statistics do not say that all times and days of these columns are near the present."""
    actions = pa.table(table.get_add_actions(flatten=True))
    near: Any = pa.repeat(pa.scalar(True), actions.num_rows)
    for name in names:
        least, greatest, nulls = statistics(table, actions, name, "min", "max", "null_count")
        if least is None or greatest is None or nulls is None:  # A list or a struct has none.
            near = pa.repeat(pa.scalar(False), actions.num_rows)
            break
        within: Any = pc.invert(_are_early(least))
        if pa.types.is_timestamp(greatest.type):
            within = pc.and_(within, pc.less(greatest, _LATEST))
        none = pc.equal(nulls, actions["num_records"])
        near = pc.and_(near, pc.or_kleene(within, none))
    for path in actions["path"].filter(pc.invert(pc.fill_null(near, False))):
        yield str(path)


def _wrong(file: pq.ParquetFile) -> tuple[str, str] | None:
    """What is in the file that a MERGE would change, and the setting under which Spark writes none."""
    if _any(file, _are_far, "INT96"):
        found = "times before 1678 or after 2261 in Parquet's INT96"
        return found, "spark.sql.parquet.outputTimestampType = TIMESTAMP_MICROS"
    if any(_is_old(file, *calendar) for calendar in _CALENDARS):
        found = "days before 15 October 1582, or times before 1900, by the calendar of before Spark 3"
        return found, "spark.sql.parquet.datetimeRebaseModeInWrite = CORRECTED, and int96RebaseModeInWrite alike"
    return None


def _is_old(file: pq.ParquetFile, kinds: tuple[str, ...], mark: bytes, versions: tuple[bytes, ...]) -> bool:
    metadata = file.metadata.metadata or {}
    is_marked = mark in metadata or metadata.get(_VERSION, b"").startswith(versions)
    return is_marked and _any(file, _are_early, *kinds)


def _any(file: pq.ParquetFile, are: Callable[[Any], Any], *kinds: str) -> bool:
    """Whether `are` is true of any time or day of these kinds, wherever it is nested."""
    leaves = [file.schema.column(at) for at in range(len(file.schema))]
    chosen = [leaf.path for leaf in leaves if leaf.physical_type in kinds or leaf.logical_type.type in kinds]
    for batch in file.iter_batches(columns=chosen) if chosen else ():
        for column in batch.columns:
            if any(pc.any(are(times)).as_py() for times in _times(column)):
                return True
    return False


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
        yield column.cast(_EARLIEST.type)
    elif pa.types.is_date(kind):
        yield column


def _are_far(times: Any) -> Any:
    """Which of these times cannot be told in nanoseconds since 1970."""
    return pc.or_(pc.less(times, _EARLIEST), pc.greater_equal(times, _LATEST))


def _are_early(times: Any) -> Any:
    """Which of these times or days may be counted differently by the two calendars."""
    return pc.less(times, _GREGORIAN if pa.types.is_date(times.type) else _OF_ONE_CALENDAR)
