"""Keys: their values as text and as SQL, and whether they lie in a range.

A time or date is its number of microseconds or days, as text and where keys are compared: so it is exact whatever
Python's own types can hold. Text compares by its bytes in UTF-8, which is the order of Python's strings as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from backfill.arrow.order import passed, within
from backfill.errors import KeyTextError, UnsupportedTypeError
from backfill.vnode import Coverage, Key, KeyRange

Value: TypeAlias = int | str | bytes | Decimal
Values: TypeAlias = tuple[Value, ...]

MANY_RANGES: Final = 16
"""From so many ranges on it is quicker to look for a key's place among their ends than to try each range."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """One column of the key."""

    name: str
    type: pa.DataType

    @classmethod
    def of(cls, field: pa.Field[Any]) -> KeyColumn:
        kind = field.type
        orderable = (
            pa.types.is_integer(kind)
            or pa.types.is_temporal(kind)
            or pa.types.is_decimal(kind)
            or kind in (pa.string(), pa.binary())
        )
        if not orderable:
            raise UnsupportedTypeError(
                f"column {field.name!r} of the key has the type {kind}, expected whole numbers, text, bytes, a date, "
                "a time or a decimal; name other columns with the option keyColumns"
            )
        return cls(field.name, kind)

    @property
    def _number(self) -> pa.DataType | None:
        """The type that a time or date is compared as; None for other types."""
        if not pa.types.is_temporal(self.type):
            return None
        return pa.int32() if pa.types.is_date(self.type) else pa.int64()

    def comparable(self, column: pa.Array[Any]) -> pa.Array[Any]:
        return column if self._number is None else column.view(self._number)

    def value(self, text: str) -> Value:
        if pa.types.is_decimal(self.type):
            return Decimal(text)
        if self.type == pa.string():
            return text
        return bytes.fromhex(text) if self.type == pa.binary() else int(text)

    def given(self, text: str) -> Value:
        """As `value`, for what a person writes: times and dates by their usual text."""
        number = self._number
        if number is None:
            return self.value(text)
        found: Any = pa.array([text]).cast(self.type).view(number)
        return int(found[0].as_py())

    @property
    def form(self) -> str:
        """How a person has to write a value, in words."""
        zoned = pa.types.is_timestamp(self.type) and self.type.tz is not None
        return f"{self.name} {self.type}" + (", with its offset, such as 2026-01-31T12:00:00Z" if zoned else "")

    def text(self, value: Value) -> str:
        if isinstance(value, bytes):
            return value.hex()
        return format(value, "f") if isinstance(value, Decimal) else str(value)

    def typed(self, values: Sequence[Value]) -> pa.Array[Any]:
        if self._number is None:
            return pa.array(values, self.type)
        return pa.array(values, self._number).view(self.type)

    def literals(self, value: Value) -> tuple[str, str] | None:
        """The value in SQL, so that statistics can be compared with it: as an upper end and as a lower one.

        None for types without statistics. Statistics cut times to milliseconds, so a lower end is cut as well.
        """
        if pa.types.is_decimal(self.type):
            text = f"arrow_cast('{self.text(value)}', 'Decimal128({self.type.precision}, {self.type.scale})')"
            return text, text
        if isinstance(value, str):
            return (_string(value),) * 2
        if not isinstance(value, int):
            return None
        if pa.types.is_date(self.type):
            return (f"arrow_cast(arrow_cast({value}, 'Int32'), 'Date32')",) * 2
        if pa.types.is_timestamp(self.type):
            return self._time(value), self._time(value // 1000 * 1000)
        return (str(value),) * 2

    def _time(self, value: int) -> str:
        zone = "None" if self.type == pa.timestamp("us") else 'Some("UTC")'
        return f"arrow_cast({value}, 'Timestamp(Microsecond, {zone})')"


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class KeyColumns:
    """The key, in key order."""

    columns: tuple[KeyColumn, ...]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    def values(self, key: Key) -> Values:
        return tuple(column.value(text) for column, text in zip(self.columns, key, strict=True))

    def key(self, values: Values) -> Key:
        return tuple(column.text(value) for column, value in zip(self.columns, values, strict=True))

    def canonical(self, key: Key) -> Key:
        """The text of the key that a person has given; KeyTextError where it is none."""
        if len(key) != len(self.columns):
            raise KeyTextError(f"a key has {len(key)} values, and the table's key is ({', '.join(self.names)})")
        try:
            given = self.key(tuple(column.given(text) for column, text in zip(self.columns, key, strict=True)))
            self.typed([given])
        except (ValueError, ArithmeticError, pa.ArrowException):
            forms = "; ".join(column.form for column in self.columns)
            raise KeyTextError(f"a value does not fit the table's key ({forms})") from None
        return given

    def typed(self, keys: Sequence[Key]) -> pa.RecordBatch:
        values = [self.values(key) for key in keys]
        arrays = [column.typed([row[at] for row in values]) for at, column in enumerate(self.columns)]
        return pa.RecordBatch.from_arrays(arrays, names=self.names)

    def covered(self, keys: pa.RecordBatch, coverage: Coverage) -> pa.BooleanArray:
        """For each key, whether it lies in these ranges; null for one that is null."""
        if len(coverage) >= MANY_RANGES and not any(column.null_count for column in keys.columns):
            ends = [end for item in coverage for end in (item.after, item.upto) if end is not None]
            # Each end that lies before a key leads into a range or out of it.
            count = passed(keys, self.typed(ends))
            return pa.array(count % 2 == (coverage[0].after is not None), pa.bool_())
        found = pa.repeat(pa.scalar(False), keys.num_rows)
        for item in coverage:
            after, upto = (None if end is None else self.typed([end]) for end in (item.after, item.upto))
            found = pc.or_(found, within(keys, after, upto))
        return found

    def equal(self, keys: pa.RecordBatch, key: Key) -> pa.BooleanArray:
        """For each of these keys, whether it is this one."""
        same = pa.repeat(pa.scalar(True), keys.num_rows)
        for column, value in zip(keys.columns, self.typed([key]).columns, strict=True):
            same = pc.and_(same, pc.equal(column, value[0]))
        return same

    def texts(self, keys: pa.RecordBatch) -> list[Key]:
        """The texts of a few keys."""
        columns: list[Any] = [part.comparable(column) for part, column in zip(self.columns, keys.columns, strict=True)]
        return [self.key(values) for values in zip(*(column.to_pylist() for column in columns), strict=True)]

    def around(self, keys: pa.RecordBatch) -> KeyRange:
        """From the least to the greatest of these keys by the first column alone, as `predicate` looks at no other."""
        column = self.columns[0]
        ends: Any = pc.min_max(column.comparable(keys.column(0)))
        least, greatest = (column.text(ends[name].as_py()) for name in ("min", "max"))
        return KeyRange((least,), (greatest,))

    def predicate(self, coverage: Coverage) -> str | None:
        """SQL that holds for every key in these ranges, and for few others; None where there is nothing to say."""
        parts = [self._range(item) for item in coverage]
        return " OR ".join(f"({part})" for part in parts if part) if parts and all(parts) else None

    def _range(self, item: KeyRange) -> str:
        """A condition on the first column alone: few more keys meet it, and files are left out by one column anyway."""
        column = self.columns[0]
        ends = []
        for key, at, sign in ((item.after, 1, ">="), (item.upto, 0, "<=")):
            literals = None if key is None else column.literals(column.value(key[0]))
            if literals is not None:
                ends.append(f"{quoted(column.name)} {sign} {literals[at]}")
        return " AND ".join(ends)


def quoted(name: str) -> str:
    """The name as an identifier, in DuckDB's SQL and in DataFusion's."""
    return '"' + name.replace('"', '""') + '"'
