"""Columns that a table has got since its stream began."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Added:
    """Columns that the table got since the stream began: rows and changes from before lack them, and get null.

    A row with a column that the table no longer has (`all` are those that it has) is not taken to lack anything: that
    column may be one of `names`, under its earlier name. The caller must see to it that each column in `all` is still
    the same one.
    """

    names: frozenset[str] = frozenset()
    all: frozenset[str] = frozenset()

    def lacked_by(self, columns: Collection[str]) -> frozenset[str]:
        """The added columns that a row of these columns lacks."""
        return self.names.difference(columns) if self.all.issuperset(columns) else frozenset()


NOTHING_ADDED: Final = Added()
