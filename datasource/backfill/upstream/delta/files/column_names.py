"""The names of a table's columns in its files (Delta protocol, Column Mapping): others where columns were renamed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from deltalake import DeltaTable

MAPPING: Final = "delta.columnMapping.mode"
_PHYSICAL: Final = "delta.columnMapping.physicalName"


def mapping_mode(properties: Mapping[str, Any]) -> str:
    """How columns are found in the files, by these properties of a table: `none`, `name` or `id`."""
    return str(properties.get(MAPPING) or "none").lower()


def stored_names(table: DeltaTable, names: Iterable[str]) -> list[str]:
    """The names of these columns in the files and their statistics; values of partitions go by the table's names."""
    if not _is_mapped(table):
        return list(names)
    stored = {field.name: str(field.metadata.get(_PHYSICAL, field.name)) for field in table.schema().fields}
    return [stored.get(name, name) for name in names]


def _is_mapped(table: DeltaTable) -> bool:
    """Whether columns are mapped: the property alone is not enough, the table's protocol has to have the feature."""
    protocol = table.protocol()
    has_feature = protocol.min_reader_version == 2 or "columnMapping" in (protocol.reader_features or ())
    return has_feature and mapping_mode(table.metadata().configuration) != "none"
