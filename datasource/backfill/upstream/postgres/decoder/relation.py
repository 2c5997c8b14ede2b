"""What the server says about a relation before its rows come (the manual's Relation message)."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from backfill.errors import SchemaChangedError, TableError
from backfill.upstream.added import Added
from backfill.upstream.postgres.decoder.messages import RELATION, Messages, Positions, malformed
from backfill.upstream.postgres.values.oids import Oid
from backfill.wording import FRESH_START, OF_A_READ

_IDENTITY: Final = 1

WIDENED: Final = frozenset({(Oid.INT2, Oid.INT4), (Oid.INT2, Oid.INT8), (Oid.INT4, Oid.INT8), (Oid.VARCHAR, Oid.TEXT)})
"""Pairs of types: each value of the first has the same text in the second."""


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column the stream carries; `key` if it belongs to the stream's key. `number` is pg_attribute.attnum.

    `decode` turns a binary array of PostgreSQL's text output, nulls included, into an array of the column's
    Arrow type: of the same length, nulls staying null, the type always the same.
    """

    name: str
    number: int
    type_oid: int
    key: bool
    decode: Callable[[pa.Array[Any]], pa.Array[Any]]


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column as it comes in the rows; `identity` if it belongs to the table's replica identity."""

    name: str
    type_oid: int
    identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as described by one Relation message; its rows carry exactly these columns in this order."""

    schema: str
    name: str
    columns: tuple[RelationColumn, ...]

    def ignored(self, wanted: Sequence[WantedColumn]) -> tuple[str, ...]:
        """The columns nobody asked for, in the table's order."""
        names = {column.name for column in wanted}
        return tuple(column.name for column in self.columns if column.name not in names)

    def targets(self, wanted: Sequence[WantedColumn]) -> tuple[int | None, ...]:
        """For each of the relation's columns, its place in `wanted`; None if it is skipped."""
        place = {column.name: index for index, column in enumerate(wanted)}
        return tuple(place.get(column.name) for column in self.columns)


@dataclass(frozen=True, slots=True)
class Descriptions:
    """What a batch says about one relation: `relations[0]`, known before it, holds up to message `at[0]`, and so on."""

    at: Positions
    relations: tuple[Relation | None, ...]

    @property
    def last(self) -> Relation | None:
        return self.relations[-1]

    def groups(self, messages: Positions) -> Iterator[tuple[Relation | None, Positions]]:
        """Splits (ascending) messages by the description they follow; gives the places in `messages`, ascending too.

        A description is repeated whenever the server's cache was reset, mostly without a difference.
        """
        # Comparing two descriptions looks at all their columns; most of the repeated ones are the same object.
        objects = {id(relation): relation for relation in self.relations}
        number = {relation: index for index, relation in enumerate(dict.fromkeys(objects.values()))}
        of_object = {identity: number[relation] for identity, relation in objects.items()}
        description = np.array([of_object[id(relation)] for relation in self.relations])
        of_message = description[np.searchsorted(self.at, messages)]
        for relation, index in number.items():
            members = np.flatnonzero(of_message == index)
            if len(members):
                yield relation, members


def descriptions_of(messages: Messages, relation_id: int, before: Relation | None) -> Descriptions:
    """What the messages say about this relation, which was `before` as far as it was described already."""
    described = np.flatnonzero(messages.kind == RELATION)
    described = described[messages.uint32(messages.start[described] + 1) == relation_id]
    # In Python, one by one: there is one for each change of the table's definition, not for each row. Most are repeated
    # without a difference, and one of many columns takes as long as hundreds of rows.
    found = [messages.bytes_of(int(message)) for message in described]
    meaning = {message: _parse_relation(message) for message in dict.fromkeys(found)}
    return Descriptions(described, (before, *(meaning[message] for message in found)))


def _parse_relation(message: bytes) -> Relation:
    try:
        return _parse(message)
    except (IndexError, struct.error):
        raise malformed("a Relation message ends too early") from None
    except UnicodeDecodeError:
        raise malformed("a Relation message holds a name that is not UTF-8; client_encoding must be UTF8") from None


def _parse(message: bytes) -> Relation:
    schema, at = _string(message, 5)
    name, at = _string(message, at)
    at += 1  # the replica identity setting; all that matters of it is in the columns' flags
    (count,) = struct.unpack_from(">H", message, at)
    at += 2
    columns = []
    for _ in range(count):
        flags = message[at]
        column, at = _string(message, at + 1)
        type_oid, _type_modifier = struct.unpack_from(">Ii", message, at)
        at += 8
        columns.append(RelationColumn(column, type_oid, bool(flags & _IDENTITY)))
    if at != len(message):
        raise malformed("a Relation message is longer than its columns")
    if len({column.name for column in columns}) != count:
        raise malformed("a Relation message names a column twice")
    return Relation(schema or "pg_catalog", name, tuple(columns))


def _string(message: bytes, at: int) -> tuple[str, int]:
    end = message.find(b"\0", at)
    if end < 0:
        raise malformed("a Relation message ends too early")
    return message[at:end].decode(), end + 1


def require_unchanged(relation: Relation, wanted: Sequence[WantedColumn], added: Added) -> None:
    """Refuses a relation that lacks a wanted column, has another column of its name, or another type for it; names all
    such columns.

    A narrower type passes, because rows come as text: such rows are from before the column was widened.
    """
    found = {column.name: column.type_oid for column in relation.columns}
    lacked = added.lacked_by(found)
    others = _others(relation, wanted)
    problems = [f"column {name!r} was another one, which had that name" for name in others]
    for column in wanted:
        type_oid = found.get(column.name)
        if column.name in lacked:
            continue
        if type_oid is None:
            problems.append(f"column {column.name!r} is missing")
        elif type_oid != column.type_oid and (type_oid, column.type_oid) not in WIDENED:
            problems.append(f"column {column.name!r} has the type with OID {type_oid}, expected OID {column.type_oid}")
    where = f"in the change log, the table {relation.schema}.{relation.name} has other columns than the stream reads"
    if any(column.key and (column.name in others or column.name not in found) for column in wanted):
        raise SchemaChangedError(
            f"{where}: {'; '.join(problems)}. A column of the key cannot be left out, and these changes stay in the "
            f"log as they are: start over with {FRESH_START}. {OF_A_READ}"
        )
    if problems:
        raise SchemaChangedError(
            f"{where}: {'; '.join(problems)}. Start the query again, without missing columns in the option columns: "
            "it goes on with the current columns. If that is refused as well, these changes were made before a "
            "column was added or altered: leave that out with the option columns until the stream is past them, and "
            "read the rows again with backfill re-backfill; or, also if changelog=full or envelope=upsert keeps its "
            f"values, start over with {FRESH_START}. {OF_A_READ}"
        )


def _others(relation: Relation, wanted: Sequence[WantedColumn]) -> list[str]:
    """The wanted columns whose names other columns have in this relation, as far as the columns' places tell.

    A relation's columns are sent in the order of their numbers, and no number is given twice. So a column has before it
    at least the columns with lower numbers; and between two columns there are at most as many as there are numbers
    between theirs. The first rule finds a column that was dropped and added again, the second one whose name a later
    column had, and both together two columns that exchanged their names.
    """
    there = {column.name for column in relation.columns}
    numbers = {column.name: column.number for column in wanted if column.name in there}
    ascending = sorted(numbers.values())
    others, last, between = [], 0, 0
    for place, name in enumerate(column.name for column in relation.columns):
        number = numbers.get(name)
        if number is not None and bisect_left(ascending, number) <= place and last + between < number:
            last, between = number, 0
            continue
        between += 1
        if number is not None:
            others.append(name)
    return others


def require_identified(relation: Relation, wanted: Sequence[WantedColumn]) -> None:
    """Refuses updates and deletes of a relation whose replica identity does not cover the stream's key.

    Without this an update of the key would pass as an update of another row, because the old key is not logged.
    """
    identity = {column.name for column in relation.columns if column.identity}
    lacking = [column.name for column in wanted if column.key and column.name not in identity]
    if lacking:
        raise TableError(
            f"the replica identity of the table {relation.schema}.{relation.name} does not cover the key of the "
            f"stream: column {', '.join(map(repr, lacking))} is left out of updates and deletes. Run ALTER TABLE … "
            "REPLICA IDENTITY DEFAULT if the key is the primary key, else REPLICA IDENTITY USING INDEX … with the "
            f"index of the key; then start over with {FRESH_START}. {OF_A_READ}"
        )
