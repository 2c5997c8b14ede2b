"""Other tables that had our table's name when they were changed, and whose place it has taken since.

The log goes by OIDs. So the changes of a table that was dropped or renamed are not ours; and the log does not tell that
its rows went, and ours came in their place.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from backfill.arrow.arrays import Mask
from backfill.errors import TableError
from backfill.upstream.postgres.decoder.messages import RELATION, Messages
from backfill.upstream.postgres.decoder.row_changes import row_changes
from backfill.upstream.postgres.description import QualifiedName


class Namesakes:
    """Follows which other tables have the name, from one batch of messages to the next."""

    def __init__(self, relation_id: int, name: QualifiedName) -> None:
        self._relation_id = relation_id
        self._name: Final = name
        self._begins: Final = f"{name.schema}\0{name.name}\0".encode()
        self._now: frozenset[int] = frozenset()

    def require_unchanged(self, messages: Messages, inside: Mask, kept: Mask) -> None:
        """Raises TableError where one of the `kept` messages changes such a table; see `row_changes`."""
        described = np.flatnonzero(messages.kind == RELATION)
        ids = messages.uint32(messages.start[described] + 1)
        # In Python, one by one: a table is described once, and again when its definition has changed.
        named = np.array([self._is_named(messages, int(message)) for message in described], np.bool_)
        others = self._now.union(ids[named & (ids != self._relation_id)].tolist())
        now = set()
        for relation_id in others:
            own = ids == relation_id
            # As before the batch, and then as each description says.
            has_name = np.append(relation_id in self._now, named[own])
            changed = row_changes(messages, relation_id, inside, kept).message
            if has_name[np.searchsorted(described[own], changed)].any():
                raise self._replaced()
            if has_name[-1]:
                now.add(relation_id)
        self._now = frozenset(now)

    def _is_named(self, messages: Messages, message: int) -> bool:
        return messages.bytes_of(message)[5:].startswith(self._begins)

    def _replaced(self) -> TableError:
        return TableError(
            f"between the two positions another table named {self._name.quoted()} was changed; it was dropped or "
            "renamed, and the present table took its name. So the log does not have all changes of one table between "
            "the positions. Read the changes since then, with a later startingPosition; for what was before, read "
            "the table"
        )
