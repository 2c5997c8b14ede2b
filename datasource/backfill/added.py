"""Columns that a table has got since its stream began."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Added:
    """Columns that the table got since the stream began: rows and changes from before lack them, and get null.

    Not where such a row has a column that is not among those the table has now, `all`: it may be one of these, under
    the name it had then. Who says so has to see that the table still has each of them, as the one it was.
    """

    names: frozenset[str] = frozenset()
    all: frozenset[str] = frozenset()

    def lacked_by(self, columns: Collection[str]) -> frozenset[str]:
        """Those which a row of these columns lacks."""
        return self.names.difference(columns) if self.all.issuperset(columns) else frozenset()


NOTHING_ADDED: Final = Added()
