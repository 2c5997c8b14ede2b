"""How the table was when a stream of it began: what the stream's positions depend on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from backfill.errors import SchemaChangedError, TableError
from backfill.upstream import Bookmark
from backfill.upstream.noted import noted
from backfill.upstream.postgres.position import Snapshot
from backfill.upstream.postgres.tables.columns import keeps_values, room
from backfill.upstream.postgres.tables.table import Table
from backfill.wording import FRESH_START, IN_ITS_PLACE

_START_OVER: Final = f"start over with {FRESH_START}"
_LOST_TRACK: Final = f"it is no longer known which rows have been read. Change it back, or {_START_OVER}"


@dataclass(frozen=True, slots=True)
class Baseline:
    """Which table it was, and the order of its key; a new order may be noted once nothing depends on the old one."""

    collations: str
    """The collations that the key is ordered by, where it has any. A bookmark without this says that it has none."""

    order: str
    """How the key's index sorts; see `Table.order`."""

    key_types: str
    """See `Table.key_types`."""

    last_column: int
    """The number of the table's last column."""

    table_id: str
    """The table's OID. `stateDir` has it as well, and may be lost."""

    types: str = ""
    """See `Table.types`, when the stream was started last. Empty if that was by an earlier release."""

    filter_columns: str = ""
    """See `Table.filter_columns`. Empty where all rows are read, or that is not known."""

    kept: str = ""
    """The `Table.value_columns` of which last rows are kept, as the columns were when the stream was started last;
    empty where none are kept, or were by an earlier release.
    """

    partitions: str = ""
    """The OIDs of `TableDescription.partitions`, when the stream was started last."""

    listed_in: str = ""
    """See `TableDescription`. Empty without partitions, or where an earlier release listed them."""

    @classmethod
    def with_table(cls, table: Table) -> Baseline:
        """How the table is for a stream that begins now. Until the stream has its place this is the same at each start,
        as long as the table is; then `started` notes `listed_in` too.
        """
        return cls(
            collations=table.collations,
            order=table.order,
            key_types=table.key_types,
            last_column=max(column.attnum for column in table.description.columns),
            table_id=str(table.description.oid),
            types=table.types,
            filter_columns=table.filter_columns,
            partitions=_listed(table),
        )

    @classmethod
    def of(cls, bookmark: Bookmark) -> Baseline:
        """What a bookmark made of `names` says."""
        return cls(
            collations=dict(bookmark).get("collations", ""),
            order=noted(bookmark, "order"),
            key_types=noted(bookmark, "key_types"),
            last_column=int(noted(bookmark, "last_column")),
            table_id=noted(bookmark, "table_id"),
            types=dict(bookmark).get("types", ""),
            filter_columns=dict(bookmark).get("filter_columns", ""),
            kept=dict(bookmark).get("kept", ""),
            partitions=dict(bookmark).get("parts", ""),
            listed_in=dict(bookmark).get("parts_listed_in", ""),
        )

    @property
    def names(self) -> Bookmark:
        if_known = (
            ("types", self.types),
            ("filter_columns", self.filter_columns),
            ("kept", self.kept),
            ("parts", self.partitions),
            ("parts_listed_in", self.listed_in),
        )
        return (
            ("collations", self.collations),
            ("order", self.order),
            ("key_types", self.key_types),
            ("last_column", str(self.last_column)),
            ("table_id", self.table_id),
            *((name, value) for name, value in if_known if value),
        )

    @property
    def known_partitions(self) -> tuple[int, ...]:
        return tuple(map(int, self.partitions.split()))

    @property
    def partitions_listed_in(self) -> Snapshot | None:
        return Snapshot.parse(self.listed_in) if self.listed_in else None

    def require_same_filter(self, table: Table) -> None:
        """Raises where a column that chose the rows at the beginning no longer has its name."""
        before, now = (set(item.split(", ")) for item in (self.filter_columns, table.filter_columns))
        if self.filter_columns and table.filter_columns and not before <= now:
            raise SchemaChangedError(
                f"a column of {table.description.name.quoted()} that snapshotFilter names was dropped and added "
                f"again, or another column got its name (column numbers {table.filter_columns}, expected "
                f"{self.filter_columns}), so the filter would choose other rows than before. Give the columns back "
                f"their names; or, if all rows have been read once, leave snapshotFilter out; or {_START_OVER}"
            )

    def reordered(self, table: Table) -> Baseline:
        """The same, for positions in the order that keys have now."""
        return replace(self, collations=table.collations, order=table.order, key_types=table.key_types)

    def keeping(self, table: Table) -> Baseline:
        """The same, noting of which columns last rows are kept. Raises where kept rows have values of other columns.

        Columns may have come at the end, or be left out there: whether the last rows allow that is not checked here.
        """
        before, now = (item.split(", ") for item in (self.kept, table.value_columns))
        if self.kept and any(one != other for one, other in zip(before, now, strict=False)):
            raise SchemaChangedError(
                f"the last rows kept of {table.description.name.quoted()} have the values of columns {self.kept} (by "
                f"their numbers), and the stream now carries columns {table.value_columns}. If the option columns was "
                "changed, name the earlier columns in their order, and new ones after them. If a column was dropped, "
                f"added again or renamed while the query was stopped, {_START_OVER}"
            )
        return replace(self, kept=table.value_columns)

    def require_same_table(self, table: Table) -> None:
        """Raises where this is another table than the one that the stream began with."""
        if self.table_id != str(table.description.oid):
            raise TableError(
                f"the stream began with the table with OID {self.table_id}, and {table.description.name.quoted()} has "
                f"OID {table.description.oid}. If the former was renamed (SELECT {self.table_id}::regclass), set "
                f"dbtable to its new name; {IN_ITS_PLACE}; if it was dropped, {_START_OVER}"
            )

    def require_same_key(self, table: Table) -> None:
        """Raises where the key is of other columns, whatever their order and types."""
        if _numbers(self.key_types) != _numbers(table.key_types):
            raise SchemaChangedError(
                f"the key of {table.description.name.quoted()} has other columns than when the stream began (column "
                f"numbers with OIDs of types {table.key_types}, expected {self.key_types}). Give the table back its "
                f"former key, or {_START_OVER}"
            )

    def require_same_order(self, table: Table) -> None:
        """Raises where the key sorts otherwise: positions of the old order mean nothing in the new one."""
        if self.order != table.order:
            raise SchemaChangedError(
                f"the index of the key of {table.description.name.quoted()} has another operator class or collation "
                f"({table.order or 'the default'}, expected {self.order or 'the default'}) than when the stream began, "
                f"so rows are in another order, and {_LOST_TRACK}"
            )
        if self.key_types != table.key_types:
            raise SchemaChangedError(
                f"a key column of {table.description.name.quoted()} got another type, or another column got its name "
                f"(column numbers with OIDs of types {table.key_types}, expected {self.key_types}), so {_LOST_TRACK}"
            )
        rewritten = [name for name in self.redefined(table) if name in table.schema.key]
        if rewritten:
            raise SchemaChangedError(
                f"column {', '.join(rewritten)} of the key of {table.description.name.quoted()} got another "
                "precision, scale, length or expression since the stream was last started, so rows may have other "
                f"keys now, and {_LOST_TRACK}"
            )
        if self.collations != table.collations:
            raise SchemaChangedError(
                f"the key of {table.description.name.quoted()} got another collation since the stream began "
                f"({table.collations or 'none'}, expected {self.collations or 'none'}), so its rows are in another "
                f"order (unless the collation or its schema was only renamed), and {_LOST_TRACK}"
            )

    def started(self, table: Table) -> Baseline:
        """The same for a stream that is started again now."""
        described = table.description
        return replace(self, types=table.types, partitions=_listed(table), listed_in=described.listed_in)

    def redefined(self, table: Table) -> tuple[str, ...]:
        """The columns that are carried and were given another type or expression since the stream was started last."""
        before = dict(item.split(" ", 1) for item in self.types.split(", ") if item)
        return tuple(
            column.name
            for column, now in zip(table.carried, table.types.split(", "), strict=True)
            for number, definition in [now.split(" ", 1)]
            if not _has_same_values(before.get(number, definition), definition)
        )

    def added(self, table: Table) -> tuple[str, ...]:
        """The columns that are carried and were added since the stream began."""
        return tuple(column.name for column in table.columns if column.attnum > self.last_column)


def _listed(table: Table) -> str:
    return " ".join(map(str, table.description.partitions))


def _numbers(key_types: str) -> set[str]:
    """The numbers of the columns that such a key is made of."""
    return {item.split(" ", 1)[0] for item in key_types.split(", ")}


def _has_same_values(before: str, now: str) -> bool:
    """Whether a column has the same values by two definitions, as in `Table.types`; see `columns.require_as_described`.

    An earlier release noted -1 for a varchar without a length, and not its `room`.
    """
    (type_before, room_before, *computed_before), (type_now, room_now, *computed_now) = before.split(), now.split()
    type_oid = int(type_now)
    same_type = type_before == type_now and keeps_values(type_oid, room(type_oid, int(room_before)), int(room_now))
    return same_type and computed_now in ([], computed_before)
