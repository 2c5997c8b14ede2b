"""A position: a version of a table, and which table it is a version of."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.errors import OffsetError


@dataclass(frozen=True, slots=True)
class Position:
    """Text: `12@04b4e8ed-1c54-40ed-9e27-bcb4185234e5`."""

    version: int
    table_id: str

    def __str__(self) -> str:
        return f"{self.version}@{self.table_id}"

    @classmethod
    def parse(cls, text: str) -> Position:
        version, at, table_id = text.partition("@")
        if not (version.isascii() and version.isdigit() and at and table_id):
            raise OffsetError(
                f"the position {text!r} is not one of a Delta table: it is damaged, or of another upstream. "
                "Restore the checkpoint, or start with a fresh checkpointLocation"
            )
        return cls(int(version), table_id)
