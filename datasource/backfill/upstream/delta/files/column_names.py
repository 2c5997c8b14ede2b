"""What a table's columns are called in its files (Delta protocol, Column Mapping): otherwise where one was renamed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from deltalake import DeltaTable

MAPPING: Final = "delta.columnMapping.mode"
_PHYSICAL: Final = "delta.columnMapping.physicalName"


def mapping_mode(properties: Mapping[str, Any]) -> str:
    """How the files' names of columns are found by these properties of a table: `none`, `name` or `id`."""
    return str(properties.get(MAPPING) or "none").lower()


def stored_names(table: DeltaTable, names: Iterable[str]) -> list[str]:
    """The names of these columns in the files, and in what the log says of their values; partitions have their own."""
    if not _is_mapped(table):
        return list(names)
    stored = {field.name: str(field.metadata.get(_PHYSICAL, field.name)) for field in table.schema().fields}
    return [stored.get(name, name) for name in names]


def _is_mapped(table: DeltaTable) -> bool:
    """The property alone does not do it: the table's protocol has to have the feature."""
    protocol = table.protocol()
    has_feature = protocol.min_reader_version == 2 or "columnMapping" in (protocol.reader_features or ())
    return has_feature and mapping_mode(table.metadata().configuration) != "none"
