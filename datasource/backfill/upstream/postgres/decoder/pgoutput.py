"""Decodes PostgreSQL's change log, `pgoutput` of protocol version 1 in text mode, a record batch at a time.

The messages come as one Arrow binary array. No step looks at a single row:

1. `messages` finds each message's type; `transactions` numbers the transactions and asks which to keep;
2. `row_changes` selects the changes of our relation in them; `relation` tells what columns these have;
3. `tuples` walks the columns of all rows at once and cuts out the wanted values;
4. each column's text is decoded as one array, and the columns are put into the layout of `backfill.changes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from backfill import changes as layout
from backfill.arrow.arrays import Mask
from backfill.errors import SchemaChangedError, TableError, UnchangedToastError
from backfill.upstream.added import NOTHING_ADDED, Added
from backfill.upstream.postgres.decoder import messages as pgoutput
from backfill.upstream.postgres.decoder.messages import Messages, by_byte, malformed, read_messages, require
from backfill.upstream.postgres.decoder.namesakes import Namesakes
from backfill.upstream.postgres.decoder.relation import (
    Descriptions,
    Relation,
    WantedColumn,
    descriptions_of,
    require_identified,
    require_unchanged,
)
from backfill.upstream.postgres.decoder.row_changes import (
    OLD_KEY_TUPLE,
    OLD_ROW_TUPLE,
    RowChanges,
    row_changes,
    walk_rows,
)
from backfill.upstream.postgres.decoder.transactions import NO_BEGIN, BeginMessages, Keep, Transactions, transactions_of
from backfill.upstream.postgres.decoder.tuples import NULL, TEXT, UNCHANGED, Tuples, names_where
from backfill.wording import FRESH_START, LOG_WHOLE_ROWS, OF_A_READ

_OP: Final = by_byte(
    {
        pgoutput.INSERT: layout.INSERT,
        pgoutput.UPDATE: layout.UPDATE,
        pgoutput.DELETE: layout.DELETE,
        pgoutput.TRUNCATE: layout.TRUNCATE,
    }
)
_OLD_KIND: Final = by_byte({OLD_KEY_TUPLE: layout.OLD_KEY, OLD_ROW_TUPLE: layout.OLD_ROW})


@dataclass(frozen=True)
class Decoded:
    """What one batch of messages holds.

    `rows`, in the layout of `backfill.changes`, may be empty, and may belong to a transaction that a later batch
    completes. `transactions` are all that this batch completes, kept or not, ours or not.
    """

    rows: pa.RecordBatch
    transactions: Transactions


class Decoder:
    """Decodes the changes of one table from consecutive batches of one reading of the slot.

    A value that an update left out as unchanged is taken from the old row or the old key if they carry it;
    otherwise it is null and named in `unchanged`. A value of a column that was `added` later is null. Where `namesakes`
    are given, a change of one of them is refused. With `keys_as_rows`, an old row that has nothing but a key is taken
    for an old key.
    """

    def __init__(
        self,
        relation_id: int,
        wanted: Sequence[WantedColumn],
        keep: Keep,
        added: Added = NOTHING_ADDED,
        *,
        namesakes: Namesakes | None = None,
        keys_as_rows: bool = False,
    ) -> None:
        nothing = pa.array([], pa.binary())
        self.schema: Final = layout.changes_schema(
            pa.schema([pa.field(column.name, column.decode(nothing).type) for column in wanted])
        )
        self._relation_id = relation_id
        self._wanted = tuple(wanted)
        self._keep = keep
        self._added = added
        self._namesakes = namesakes
        self._keys_as_rows = keys_as_rows
        self._open: BeginMessages = NO_BEGIN
        self._relation: Relation | None = None

    @property
    def in_transaction(self) -> bool:
        """Whether the COMMIT of the last transaction is still to come; true at the end means the log was cut."""
        return len(self._open) > 0

    @property
    def ignored_columns(self) -> tuple[str, ...]:
        """The table's columns that nobody wants, as last described, in the table's order."""
        return self._relation.ignored(self._wanted) if self._relation else ()

    def feed(self, data: pa.Array[Any]) -> Decoded:
        """Decodes the next messages: a binary array without nulls, cut from the stream anywhere between two of them.

        Raises SchemaChangedError where a kept row change follows a description of the table that lacks a wanted
        column or has another type for it, or has no key; TableError where the log lacks the key of a changed row;
        UnchangedToastError where it left out a key; another DefiniteError where it cannot be understood. The
        decoder is then as it was before, except for its `namesakes`.
        """
        messages = read_messages(data)
        member = transactions_of(messages, self._open, self._keep)
        described = descriptions_of(messages, self._relation_id, self._relation)
        kept = np.append(member.begun.kept, False)[member.index]  # index -1: before the first BEGIN
        changes = row_changes(messages, self._relation_id, member.inside, kept)
        if self._namesakes is not None:
            self._namesakes.require_unchanged(messages, member.inside, kept)
        begun = member.begun[member.index[changes.message]]
        rows = self._rows(messages, changes, begun, described) if len(changes) else self._no_rows()

        self._open, self._relation = member.open, described.last
        return Decoded(rows, member.complete)

    def _no_rows(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in self.schema], schema=self.schema)

    def _rows(
        self, messages: Messages, changes: RowChanges, begun: BeginMessages, described: Descriptions
    ) -> pa.RecordBatch:
        new, old = self._tuples(messages, changes, described)
        unchanged = new.kind == UNCHANGED
        return pa.RecordBatch.from_arrays(
            [
                pa.array(_OP[changes.kind]),
                pa.array(begun.commit_lsn.astype(np.int64)),
                pa.array(begun.timestamp).view(pa.timestamp("us", tz="UTC")),
                pa.array(begun.xid.astype(np.int64)),
                pa.array(self._old_kind(changes, old)),
                self._structs(new, changes.has_new, messages.data),
                self._structs(old, changes.has_old, messages.data),
                names_where(unchanged, [column.name for column in self._wanted]),
            ],
            schema=self.schema,
        )

    def _old_kind(self, changes: RowChanges, old: Tuples) -> NDArray[np.uint8]:
        kind = _OLD_KIND[changes.first_tuple]
        if self._keys_as_rows:
            values = [index for index, column in enumerate(self._wanted) if not column.key]
            bare = ~(old.kind[values] == TEXT).any(axis=0)
            kind[bare & changes.has_old] = layout.OLD_KEY
        return kind

    def _tuples(self, messages: Messages, changes: RowChanges, described: Descriptions) -> tuple[Tuples, Tuples]:
        new = Tuples.absent(len(self._wanted), changes.start, everywhere=not changes.has_new.any())
        old = Tuples.absent(len(self._wanted), changes.start, everywhere=not changes.has_old.any())
        rows = np.flatnonzero(changes.kind != pgoutput.TRUNCATE)
        for relation, members in described.groups(changes.message[rows]):
            if relation is None:
                raise malformed("a row comes before the description of its table")
            require_unchanged(relation, self._wanted, self._added)
            places = rows[members]
            if (changes.kind[places] != pgoutput.INSERT).any():
                require_identified(relation, self._wanted)
            walk_rows(messages, changes, places, relation.targets(self._wanted), new, old)
        require(old.kind != UNCHANGED, "an old row lacks a value as unchanged")
        new.fill_unchanged(old)
        self._require_keys(new, old, changes.has_old, described.last)
        return new, old

    def _require_keys(self, new: Tuples, old: Tuples, has_old: Mask, table: Relation | None) -> None:
        log = f"the change log of the table {table.schema}.{table.name}" if table else "the change log"
        for index, column in enumerate(self._wanted):
            if not column.key:
                continue
            if (new.kind[index] == UNCHANGED).any():
                raise UnchangedToastError(
                    f"{log} left out the unchanged value of the key column {column.name!r}. Update the "
                    f"server to its latest minor release, or, {LOG_WHOLE_ROWS}; then start over with {FRESH_START}. "
                    f"{OF_A_READ}"
                )
            if (new.kind[index] == NULL).any():
                raise SchemaChangedError(
                    f"{log} holds a row without a value in the key column {column.name!r}: the key was dropped for a "
                    "while, and such rows cannot be followed, even if it was made again. Start over with "
                    f"{FRESH_START}. {OF_A_READ}"
                )
            if (has_old & (old.kind[index] != TEXT)).any():
                raise TableError(
                    f"{log} holds an update or delete without the old value of the key column "
                    f"{column.name!r}. Make sure that the table and each of its partitions has the stream's key as "
                    "its replica identity (ALTER TABLE … REPLICA IDENTITY DEFAULT, or USING INDEX … where the key is "
                    f"not the primary key); then start over with {FRESH_START}. {OF_A_READ}"
                )

    def _structs(self, tuples: Tuples, present: Mask, data: pa.Buffer) -> pa.Array[Any]:
        row: pa.StructType = self.schema.field("new").type
        if not present.any():
            nothing: pa.Array[Any] = pa.nulls(len(present), row)
            return nothing
        columns = [column.decode(tuples.text(index, data)) for index, column in enumerate(self._wanted)]
        structs: pa.Array[Any] = pa.StructArray.from_arrays(columns, fields=list(row), mask=pa.array(~present))
        return structs
