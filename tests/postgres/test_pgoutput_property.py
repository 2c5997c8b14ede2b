"""The vectorised decoder against one that reads message by message."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from backfill.errors import DefiniteError
from backfill.upstream.postgres.decoder.pgoutput import Decoder
from backfill.upstream.postgres.decoder.relation import WantedColumn
from backfill.upstream.postgres.decoder.transactions import Transactions
from tests.postgres import wire
from tests.postgres.wire import Column, Row, Toast

OURS, OTHER = 16384, 16385
OTHER_COLUMNS = [Column("id", 23, True), Column("note")]
JUNK = b"Zjunk"


@dataclass(frozen=True)
class Stream:
    messages: tuple[bytes, ...]
    wanted: tuple[Column, ...]
    numbers: Mapping[str, int]
    kept: frozenset[int]

    def keep(self, xids: NDArray[np.uint32], _commit_lsns: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.isin(xids, list(self.kept))

    def decoder(self) -> Decoder:
        wanted = [
            WantedColumn(column.name, number, column.type_oid, key=column.name == "id", decode=lambda text: text)
            for column in self.wanted
            for number in [self.numbers[column.name]]
        ]
        return Decoder(OURS, wanted, self.keep)

    def reader(self) -> wire.Reader:
        return wire.Reader(OURS, [column.name for column in self.wanted], lambda xid, _: xid in self.kept)


texts = st.one_of(st.binary(max_size=5), st.just(b""), st.binary(min_size=200, max_size=300))


@st.composite
def row_of(draw: st.DrawFn, columns: Sequence[Column], *, toast: bool, key_only: bool = False) -> Row:
    """Draws a row; its identity columns always have values, and with `key_only` no others do."""
    missing: list[wire.Value] = [None, Toast.UNCHANGED] if toast else [None]
    optional = st.none() if key_only else st.one_of(texts, st.sampled_from(missing))
    return [draw(texts if column.identity else optional) for column in columns]


@st.composite
def change(draw: st.DrawFn, columns: Sequence[Column], relation_id: int) -> bytes:
    kind = draw(st.sampled_from("IUUKODdT"))
    key = row_of(columns, toast=False, key_only=True)
    old = row_of(columns, toast=False)
    new = row_of(columns, toast=True)
    match kind:
        case "I":
            return wire.insert(relation_id, draw(new))
        case "U":
            return wire.update(relation_id, draw(new))
        case "K":
            return wire.update(relation_id, draw(st.one_of(new, toasted_key(columns))), key=draw(key))
        case "O":
            return wire.update(relation_id, draw(new), old=draw(old))
        case "D":
            return wire.delete(relation_id, key=draw(key))
        case "d":
            return wire.delete(relation_id, old=draw(old))
        case _:
            return wire.truncate(*draw(st.sampled_from([(OURS,), (OTHER, OURS), (OTHER,), (OURS, OURS), ()])))


@st.composite
def toasted_key(draw: st.DrawFn, columns: Sequence[Column]) -> Row:
    values = draw(row_of(columns, toast=True))
    return [Toast.UNCHANGED if column.identity else value for column, value in zip(columns, values, strict=True)]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Draws transactions of a table whose description changes, among changes to another table."""
    others = [
        Column(f"c{index}", draw(st.sampled_from([23, 25])), draw(st.booleans()))
        for index in range(draw(st.integers(0, 5)))
    ]
    columns = draw(st.permutations([Column("id", 20, True), *others]))
    wanted = draw(st.permutations([column for column in columns if column.name == "id" or draw(st.booleans())]))
    gaps = draw(st.lists(st.integers(0, 2), min_size=len(columns), max_size=len(columns)))
    numbers = {column.name: sum(gaps[: at + 1]) + at + 1 for at, column in enumerate(columns)}

    def describe() -> tuple[bytes, list[Column]]:
        """Describes the table with some columns not yet dropped, and with some added at the end."""
        arranged: list[Column] = []
        for at, (gap, column) in enumerate(zip(gaps, columns, strict=True)):
            arranged += [*(Column(f"dropped{at}.{index}") for index in range(draw(st.integers(0, gap)))), column]
        arranged += [Column(f"added{index}") for index in range(draw(st.integers(0, 2)))]
        return wire.relation(OURS, arranged), arranged

    description, arranged = describe()
    messages: list[bytes] = []
    count = draw(st.integers(0, 5))
    for number in range(count):
        lsn = 2**33 + 100 * number
        messages.append(wire.begin(700 + number, lsn, 1_700_000_000_000_000 + number))
        if number == 0:
            messages += [wire.origin(), wire.type_name(99), description, wire.relation(OTHER, OTHER_COLUMNS)]
        for _ in range(draw(st.integers(0, 6))):
            what = draw(st.sampled_from(["ours"] * 6 + ["other", "describe", "message"]))
            if what == "ours":
                messages.append(draw(change(arranged, OURS)))
            elif what == "other":
                messages.append(draw(change(OTHER_COLUMNS, OTHER)))
            elif what == "message":
                messages.append(wire.logical_message())
            else:
                description, arranged = describe()
                messages += [description, description]
        messages.append(wire.commit(lsn, lsn + 48))
        messages += [wire.stream_abort(900 + number)] * draw(st.integers(0, 2))
    kept = draw(st.frozensets(st.integers(700, 700 + max(count - 1, 0))))
    return Stream(tuple(messages), tuple(wanted), numbers, kept)


@st.composite
def cut(draw: st.DrawFn, messages: Sequence[bytes]) -> list[pa.Array[Any]]:
    """Cuts the messages into pieces, each a slice of something longer."""
    places = sorted(draw(st.lists(st.integers(0, len(messages)), max_size=5)))
    pieces: list[pa.Array[Any]] = []
    for first, last in zip([0, *places], [*places, len(messages)], strict=True):
        before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        whole = pa.array([JUNK] * before + list(messages[first:last]) + [JUNK] * after, pa.binary())
        pieces.append(whole.slice(before, last - first))
    return pieces


def rows_of(batch: pa.RecordBatch) -> list[dict[str, object]]:
    batch.validate(full=True)
    index = batch.schema.get_field_index("timestamp")
    return batch.set_column(index, "timestamp", batch["timestamp"].cast(pa.int64())).to_pylist()


def transactions_of(seen: Transactions) -> list[tuple[int, int, int, int, bool]]:
    begun = seen.begun
    return list(
        zip(
            begun.xid.tolist(),
            begun.commit_lsn.tolist(),
            seen.end_lsn.tolist(),
            begun.timestamp.tolist(),
            begun.kept.tolist(),
            strict=True,
        )
    )


slow = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@slow
@given(st.data())
def test_any_stream_cut_anywhere_decodes_as_it_does_message_by_message(data: st.DataObject) -> None:
    stream = data.draw(streams())
    decoder, reader = stream.decoder(), stream.reader()
    decoded = [decoder.feed(piece) for piece in data.draw(cut(stream.messages))]
    reader.read(stream.messages)

    assert [row for piece in decoded for row in rows_of(piece.rows)] == reader.rows
    assert all(piece.rows.schema == decoder.schema for piece in decoded)
    seen = Transactions.join([piece.transactions for piece in decoded])
    assert transactions_of(seen) == reader.transactions
    assert seen.last_end_lsn == (reader.transactions[-1][2] if reader.transactions else None)
    names = {column.name for column in stream.wanted}
    assert decoder.ignored_columns == tuple(c.name for c in reader.columns if c.name not in names)
    assert not decoder.in_transaction


CHANGES = {
    "insert": wire.insert(OURS, [b"1", b"", None]),
    "update": wire.update(OURS, [b"1", Toast.UNCHANGED, b"text"]),
    "update with old key": wire.update(OURS, [b"1", b"t", None], key=[b"2", None, None]),
    "update with old row": wire.update(OURS, [b"1", Toast.UNCHANGED, b"t"], old=[b"1", b"uuu", None]),
    "delete by key": wire.delete(OURS, key=[b"2", None, None]),
    "delete by row": wire.delete(OURS, old=[b"2", b"N", b"n"]),
    "truncate": wire.truncate(OTHER, OURS),
    "commit": wire.commit(100, 148),
    "relation": wire.relation(OURS, [Column("id", 20, True), Column("b"), Column("c")]),
}


def damaged(message: bytes) -> Iterator[bytes]:
    """Yields the message cut, lengthened and changed at every place."""
    for at in range(len(message) + 1):
        yield message[:at]
        for byte in b"\x00\x01\x02\x05\x7f\xffntuNKO":
            yield message[:at] + bytes([byte]) + message[at:]
            yield message[:at] + bytes([byte]) + message[at + 1 :]


@pytest.mark.parametrize("change", CHANGES)
def test_a_message_damaged_anywhere_is_refused_or_means_what_it_now_says(change: str) -> None:
    columns = (Column("id", 20, True), Column("b"), Column("c"))
    before = [wire.begin(700, 100), wire.relation(OURS, columns), wire.insert(OURS, [b"0", None, b"0"])]
    after = [wire.insert(OURS, [b"3", b"4", b"5"]), wire.commit(100, 148)]
    stream = Stream((), columns, {"id": 1, "b": 2, "c": 3}, frozenset([700]))
    refused = 0
    for message in damaged(CHANGES[change]):
        messages = [*before, message, *after]
        try:
            rows = rows_of(stream.decoder().feed(pa.array(messages, pa.binary())).rows)
        except DefiniteError:
            refused += 1
            continue
        reader = stream.reader()
        reader.read(messages)
        assert rows == reader.rows
    assert refused


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_arbitrary_bytes_never_crash_the_decoder(messages: list[bytes]) -> None:
    stream = Stream((), (Column("id", 20, True),), {"id": 1}, frozenset())
    with contextlib.suppress(DefiniteError):
        stream.decoder().feed(pa.array(messages, pa.binary()))
