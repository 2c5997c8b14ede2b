"""pgoutput messages written and read one by one: what the vectorised decoder is compared with.

After the PostgreSQL manual, "Logical Replication Message Formats", protocol version 1.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from backfill import changes

POSTGRES_EPOCH = 946_684_800_000_000


class Toast(enum.Enum):
    UNCHANGED = "u"


Value: TypeAlias = bytes | Toast | None
Row: TypeAlias = Sequence[Value]


@dataclass(frozen=True)
class Column:
    name: str
    type_oid: int = 25
    identity: bool = False


def begin(xid: int, commit_lsn: int, timestamp: int = 0) -> bytes:
    return b"B" + struct.pack(">QqI", commit_lsn, timestamp - POSTGRES_EPOCH, xid)


def commit(commit_lsn: int, end_lsn: int) -> bytes:
    return b"C" + struct.pack(">BQQq", 0, commit_lsn, end_lsn, 0)


def origin() -> bytes:
    return b"O" + struct.pack(">Q", 7) + b"elsewhere\0"


def type_name(type_oid: int) -> bytes:
    return b"Y" + struct.pack(">I", type_oid) + b"public\0mood\0"


def logical_message() -> bytes:
    return b"M" + struct.pack(">BQ", 0, 7) + b"prefix\0" + struct.pack(">I", 2) + b"hi"


def stream_abort(xid: int) -> bytes:
    return b"A" + struct.pack(">II", xid, xid + 1)


def relation(relation_id: int, columns: Sequence[Column], name: str = "orders") -> bytes:
    named = b"public\0" + name.encode() + b"\0d"
    head = b"R" + struct.pack(">I", relation_id) + named + struct.pack(">H", len(columns))
    return head + b"".join(
        struct.pack(">B", column.identity) + column.name.encode() + b"\0" + struct.pack(">Ii", column.type_oid, -1)
        for column in columns
    )


def row(values: Row) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(map(_value, values))


def _value(value: Value) -> bytes:
    match value:
        case None:
            return b"n"
        case Toast.UNCHANGED:
            return b"u"
        case bytes():
            return b"t" + struct.pack(">I", len(value)) + value


def insert(relation_id: int, new: Row) -> bytes:
    return b"I" + struct.pack(">I", relation_id) + b"N" + row(new)


def update(relation_id: int, new: Row, *, key: Row | None = None, old: Row | None = None) -> bytes:
    before = b"K" + row(key) if key is not None else b"O" + row(old) if old is not None else b""
    return b"U" + struct.pack(">I", relation_id) + before + b"N" + row(new)


def delete(relation_id: int, *, key: Row | None = None, old: Row | None = None) -> bytes:
    before = b"K" + row(key) if key is not None else b"O" + row(old or [])
    return b"D" + struct.pack(">I", relation_id) + before


def truncate(*relation_ids: int) -> bytes:
    return b"T" + struct.pack(f">IB{len(relation_ids)}I", len(relation_ids), 1, *relation_ids)


@dataclass
class Cursor:
    data: bytes
    at: int = 1

    def take(self, form: str) -> int:
        (number,) = struct.unpack_from(">" + form, self.data, self.at)
        self.at += struct.calcsize(">" + form)
        return int(number)

    def bytes(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise struct.error
        self.at += count
        return self.data[self.at - count : self.at]

    def string(self) -> str:
        end = self.data.index(b"\0", self.at)
        return self.bytes(end + 1 - self.at)[:-1].decode()

    def row(self, columns: Sequence[Column]) -> dict[str, Value]:
        if self.take("H") != len(columns):
            raise struct.error
        return {column.name: self.value() for column in columns}

    def value(self) -> Value:
        kind = self.bytes(1)
        if kind == b"t":
            return self.bytes(self.take("I"))
        return {b"n": None, b"u": Toast.UNCHANGED}[kind]


@dataclass
class Reader:
    """Reads message by message; `rows` have the layout of `backfill.changes`, with timestamps as integers."""

    relation_id: int
    wanted: Sequence[str]
    keeps: Callable[[int, int], bool]
    columns: Sequence[Column] = ()
    rows: list[dict[str, object]] = field(default_factory=list)
    transactions: list[tuple[int, int, int, int, bool]] = field(default_factory=list)
    open: tuple[int, int, int, bool] | None = None

    def read(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            self._message(Cursor(message), message[:1])

    def _message(self, message: Cursor, kind: bytes) -> None:
        match kind:
            case b"B":
                lsn, timestamp, xid = message.take("Q"), message.take("q") + POSTGRES_EPOCH, message.take("I")
                self.open = (xid, lsn, timestamp, self.keeps(xid, lsn))
            case b"C" if self.open:
                message.at += 9
                xid, lsn, timestamp, kept = self.open
                self.transactions.append((xid, lsn, message.take("Q"), timestamp, kept))
                self.open = None
            case b"R":
                self._relation(message)
            case b"T":
                count, _ = message.take("I"), message.take("B")
                if self.relation_id in [message.take("I") for _ in range(count)]:
                    self._change(changes.TRUNCATE)
            case b"I" | b"U" | b"D" if message.take("I") == self.relation_id and self.open and self.open[3]:
                self._row(message, kind)

    def _relation(self, message: Cursor) -> None:
        if message.take("I") == self.relation_id:
            message.string(), message.string(), message.bytes(1)
            self.columns = [self._column(message) for _ in range(message.take("H"))]

    def _column(self, message: Cursor) -> Column:
        flags, name, type_oid, _ = message.take("B"), message.string(), message.take("I"), message.take("i")
        return Column(name, type_oid, bool(flags & 1))

    def _row(self, message: Cursor, kind: bytes) -> None:
        op = {b"I": changes.INSERT, b"U": changes.UPDATE, b"D": changes.DELETE}[kind]
        old_kind, old, new = changes.OLD_NONE, None, None
        mark = message.bytes(1)
        if mark != b"N":
            old_kind = {b"K": changes.OLD_KEY, b"O": changes.OLD_ROW}[mark]
            old = message.row(self.columns)
            mark = message.bytes(1) if op == changes.UPDATE else b""
        if mark == b"N":
            new = message.row(self.columns)
            for name, value in new.items():
                if value is Toast.UNCHANGED and old and old[name] is not None:
                    new[name] = old[name]
        if message.at != len(message.data):
            raise struct.error
        self._change(op, old_kind, new, old)

    def _change(
        self,
        op: int,
        old_kind: int = changes.OLD_NONE,
        new: dict[str, Value] | None = None,
        old: dict[str, Value] | None = None,
    ) -> None:
        if self.open and self.open[3]:
            xid, lsn, timestamp, _ = self.open
            unchanged = [name for name in self.wanted if new and new[name] is Toast.UNCHANGED]
            self.rows.append(
                {
                    "op": op,
                    "version": lsn,
                    "timestamp": timestamp,
                    "commit_id": xid,
                    "old_kind": old_kind,
                    "new": new and {name: _known(new[name]) for name in self.wanted},
                    "old": old and {name: _known(old[name]) for name in self.wanted},
                    "unchanged": unchanged or None,
                }
            )


def _known(value: Value) -> bytes | None:
    return None if value is Toast.UNCHANGED else value
