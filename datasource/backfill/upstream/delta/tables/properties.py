"""A table's features and properties: which are refused, and whether its changes can be followed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from deltalake import DeltaTable

from backfill.errors import DatabaseSetupError, TableError
from backfill.upstream.delta.features import dropping
from backfill.upstream.delta.files.column_names import MAPPING, mapping_mode
from backfill.wording import FRESH_START

READABLE_FEATURES: Final = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""Those of the features a reader has to know that `deltalake` reads rightly, or refuses by itself where rows are read
(1.6: vacuumProtocolCheck and variantShredding-preview), so that changes can still be followed. A column of a variant is
refused by its type.
"""

_FEED: Final = "delta.enableChangeDataFeed"

_AS_IT_IS: Final = (
    "Or read the table as it is now: a stream with startupMode=snapshot, spark.read without startingPosition"
)


def require_readable(table: DeltaTable, uri: str) -> None:
    """Refuses what `deltalake` would not read, or not rightly."""
    unknown = sorted(set(table.protocol().reader_features or ()) - READABLE_FEATURES)
    if unknown:
        raise TableError(
            f"the Delta table {uri} has the feature {', '.join(unknown)}, which this source cannot read; remove it "
            f"with {dropping(uri, tuple(unknown))}, or stream a copy of the table without it"
        )
    require_names(table, uri)


def require_names(table: DeltaTable, uri: str) -> None:
    """Refuses columns that need not have the same name in all files."""
    if mapping_mode(table.metadata().configuration) == "id":
        raise TableError(
            f"the columns of the Delta table {uri} have numbers in its files ({MAPPING} = id), and deltalake finds "
            "columns by name alone: a column with another name in a file, as Iceberg's writers give it, would be "
            "null. Use a copy of the table without column mapping"
        )


def require_followable(table: DeltaTable, uri: str) -> None:
    """Refuses a table whose changes cannot be read."""
    properties = table.metadata().configuration
    if not has_feed(properties):
        raise DatabaseSetupError(
            f"the change data feed of the Delta table {uri} is off, and without it changes cannot be followed; run "
            f"{enable_feed(uri)}. Rows written before that come with the snapshot. {_AS_IT_IS}"
        )
    require_unmapped(properties, uri)


def require_unmapped(properties: Mapping[str, Any], uri: str) -> None:
    """Refuses columns whose names in the files are not those of the table."""
    _require_unmapped(properties, f"the Delta table {uri}", f"Follow a copy without column mapping. {_AS_IT_IS}")


def require_unmapped_at(version: int, properties: Mapping[str, Any], uri: str) -> None:
    """As `require_unmapped`, for a version that a stream or a read of changes has come to."""
    _require_unmapped(
        properties,
        f"version {version} of the Delta table {uri}",
        f"Remove the mapping with ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('{MAPPING}' = 'none'), or follow a "
        f"copy without column mapping. Then a stream starts over with {FRESH_START}, and a read of changes begins "
        "with startingPosition=earliest",
    )


def _require_unmapped(properties: Mapping[str, Any], table: str, way_out: str) -> None:
    mode = mapping_mode(properties)
    if mode != "none":
        raise TableError(
            f"the columns of {table} have other names in its files ({MAPPING} = {mode}), and the changes of such a "
            f"table cannot be read. {way_out}"
        )


def is_followable(properties: Mapping[str, Any]) -> bool:
    """Whether the changes of a version with these properties can be read."""
    return has_feed(properties) and mapping_mode(properties) == "none"


def has_feed(properties: Mapping[str, Any]) -> bool:
    """Whether these properties of a table switch the change data feed on."""
    return str(properties.get(_FEED) or "").lower() == "true"


def enable_feed(uri: str) -> str:
    return f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ({_FEED} = true)"
