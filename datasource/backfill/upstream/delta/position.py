"""A position: a version of a table, and which table it is a version of."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.upstream.noted import not_one


@dataclass(frozen=True, slots=True)
class Position:
    """A position, as text `12@04b4e8ed-1c54-40ed-9e27-bcb4185234e5`."""

    version: int
    table_id: str

    def __str__(self) -> str:
        return f"{self.version}@{self.table_id}"

    @classmethod
    def parse(cls, text: str) -> Position:
        version, at, table_id = text.partition("@")
        if not (version.isascii() and version.isdigit() and at and table_id):
            raise not_one("a Delta table", text)
        return cls(int(version), table_id)
