"""What the decoder of the change log promises, case by case."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from backfill import changes
from backfill.errors import DefiniteError, SchemaChangedError, TableError, UnchangedToastError
from backfill.upstream.postgres.decoder.messages import read_messages
from backfill.upstream.postgres.decoder.namesakes import Namesakes
from backfill.upstream.postgres.decoder.pgoutput import Decoded, Decoder
from backfill.upstream.postgres.decoder.relation import WantedColumn, descriptions_of
from backfill.upstream.postgres.decoder.transactions import Keep, Transactions
from backfill.upstream.postgres.description import QualifiedName
from tests.postgres import wire
from tests.postgres.wire import Column, Toast

ORDERS, OTHER = 16384, 16385
ID, NOTE = Column("id", 20, identity=True), Column("note", 25)
DESCRIPTION = wire.relation(ORDERS, [ID, NOTE])


def text(values: pa.Array[Any]) -> pa.Array[Any]:
    return values.cast(pa.string())


def integer(values: pa.Array[Any]) -> pa.Array[Any]:
    return values.cast(pa.string()).cast(pa.int64())


WANTED = (WantedColumn("id", 2, 20, key=True, decode=integer), WantedColumn("note", 4, 25, key=False, decode=text))


def everything(xids: NDArray[np.uint32], _commit_lsns: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.ones(len(xids), np.bool_)


def only(*kept: int) -> Keep:
    return lambda xids, _commit_lsns: np.isin(xids, kept)


def decoder(keep: Keep = everything, wanted: Sequence[WantedColumn] = WANTED) -> Decoder:
    return Decoder(ORDERS, wanted, keep)


def batch(*messages: bytes) -> pa.Array[Any]:
    return pa.array(messages, pa.binary())


def transaction(number: int, *messages: bytes) -> list[bytes]:
    return [wire.begin(number, 100 * number), *messages, wire.commit(100 * number, 100 * number + 48)]


def rows(decoded: Decoded) -> list[dict[str, Any]]:
    return decoded.rows.to_pylist()


def test_a_change_has_the_layout_of_all_upstreams() -> None:
    described = decoder()
    messages = [DESCRIPTION, wire.insert(ORDERS, [b"1", b"a"]), wire.delete(ORDERS, key=[b"1", None])]
    decoded = described.feed(batch(wire.begin(7, 700, 1_700_000_000_123_456), *messages, wire.commit(700, 748)))

    columns: list[pa.Field[Any]] = [pa.field("id", pa.int64()), pa.field("note", pa.string())]
    assert described.schema == decoded.rows.schema == changes.changes_schema(pa.schema(columns))
    insert, delete = rows(decoded)
    assert (insert["op"], insert["old_kind"], insert["new"], insert["old"]) == (0, 0, {"id": 1, "note": "a"}, None)
    assert (delete["op"], delete["old_kind"], delete["new"], delete["old"]) == (2, 1, None, {"id": 1, "note": None})
    assert {row["version"] for row in (insert, delete)} == {700}
    assert {row["commit_id"] for row in (insert, delete)} == {7}
    assert decoded.rows["timestamp"].cast(pa.int64()).to_pylist() == [1_700_000_000_123_456] * 2


def test_a_batch_without_rows_of_ours_has_the_same_schema() -> None:
    idle = decoder()
    assert idle.feed(batch()).rows.schema == idle.schema
    assert idle.feed(batch(*transaction(1))).rows.schema == idle.schema


@pytest.mark.parametrize(
    ("update", "note", "unchanged"),
    [
        (wire.update(ORDERS, [b"1", Toast.UNCHANGED]), None, ["note"]),
        (wire.update(ORDERS, [b"1", Toast.UNCHANGED], key=[b"2", None]), None, ["note"]),
        (wire.update(ORDERS, [b"1", Toast.UNCHANGED], old=[b"1", b"long"]), "long", None),
        (wire.update(ORDERS, [b"1", None], old=[b"1", b"long"]), None, None),
    ],
    ids=["no old tuple", "old key", "old row", "null is a value"],
)
def test_an_unchanged_large_value_is_taken_from_the_old_row_or_named(
    update: bytes, note: str | None, unchanged: list[str] | None
) -> None:
    (row,) = rows(decoder().feed(batch(*transaction(1, DESCRIPTION, update))))
    assert row["new"] == {"id": 1, "note": note}
    assert row["unchanged"] == unchanged


@pytest.mark.parametrize(
    ("change", "new", "old"),
    [
        (wire.insert(ORDERS, [b"1", None]), {"id": 1, "note": None}, None),
        (wire.delete(ORDERS, old=[b"1", None]), None, {"id": 1, "note": None}),
        (wire.truncate(ORDERS), None, None),
    ],
    ids=["new rows", "old rows", "none"],
)
def test_a_batch_may_have_nothing_but_new_rows_or_old_rows(
    change: bytes, new: dict[str, Any] | None, old: dict[str, Any] | None
) -> None:
    decoded = rows(decoder().feed(batch(*transaction(1, DESCRIPTION, change, change))))
    assert [(row["new"], row["old"], row["unchanged"]) for row in decoded] == [(new, old, None)] * 2


def test_an_unchanged_large_key_is_taken_from_the_old_key() -> None:
    update = wire.update(ORDERS, [Toast.UNCHANGED, b"a"], key=[b"1", None])
    (row,) = rows(decoder().feed(batch(*transaction(1, DESCRIPTION, update))))
    assert row["new"] == {"id": 1, "note": "a"}


@pytest.mark.parametrize("keys_as_rows", [False, True])
def test_an_old_row_of_nothing_but_a_key_is_an_old_key_where_those_are_logged_as_rows(*, keys_as_rows: bool) -> None:
    with_keys_as_rows = Decoder(ORDERS, WANTED, everything, keys_as_rows=keys_as_rows)
    updates = [wire.update(ORDERS, [b"1", b"b"], old=[b"1", note]) for note in (None, b"a")]
    messages = [wire.insert(ORDERS, [b"1", None]), *updates, wire.update(ORDERS, [b"1", b"c"])]
    decoded = rows(with_keys_as_rows.feed(batch(*transaction(1, DESCRIPTION, *messages))))
    bare = changes.OLD_KEY if keys_as_rows else changes.OLD_ROW
    assert [row["old_kind"] for row in decoded] == [changes.OLD_NONE, bare, changes.OLD_ROW, changes.OLD_NONE]


NAMED = [wire.relation(OTHER, [ID, NOTE]), DESCRIPTION]
RENAMED = wire.relation(OTHER, [ID, NOTE], "orders_before")
OF_OTHER = wire.insert(OTHER, [b"1", b"a"])


@pytest.mark.parametrize(
    ("messages", "refused"),
    [
        (transaction(1, *NAMED, OF_OTHER), True),
        (transaction(1, *NAMED, wire.truncate(OTHER, ORDERS)), True),
        ([*transaction(1, *NAMED), *transaction(2, OF_OTHER, RENAMED)], True),
        ([*transaction(1, *NAMED), *transaction(2, RENAMED, OF_OTHER)], False),
        ([*transaction(1, RENAMED), *transaction(2, *NAMED, OF_OTHER)], True),
        ([*transaction(3, *NAMED, OF_OTHER), *transaction(1, wire.insert(ORDERS, [b"1", None]))], False),
        ([*transaction(3, *NAMED, OF_OTHER), *transaction(1, OF_OTHER)], True),
        (transaction(1, wire.relation(OTHER, [ID, NOTE], "orders_of_now"), OF_OTHER), False),
    ],
)
@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_a_change_of_another_table_that_had_the_name_is_refused_where_that_is_asked(
    messages: list[bytes], refused: bool, at_once: int
) -> None:
    batches = [batch(*messages[at : at + at_once]) for at in range(0, len(messages), at_once)]
    namesakes = Namesakes(ORDERS, QualifiedName("public", "orders"))
    described = Decoder(ORDERS, WANTED, only(1, 2), namesakes=namesakes)
    with pytest.raises(TableError, match=r"another table named .* was changed") if refused else nullcontext():
        for each in batches:
            described.feed(each)
    whole = decoder(only(1, 2))
    for each in batches:
        whole.feed(each)


def test_a_truncation_of_several_tables_is_one_row_of_ours_in_its_place() -> None:
    messages = [DESCRIPTION, wire.insert(ORDERS, [b"1", None]), wire.truncate(OTHER, ORDERS), wire.truncate(OTHER)]
    found = rows(decoder().feed(batch(*transaction(1, *messages, wire.insert(ORDERS, [b"2", None])))))
    assert [row["op"] for row in found] == [changes.INSERT, changes.TRUNCATE, changes.INSERT]
    assert found[1]["new"] is found[1]["old"] is found[1]["unchanged"] is None


def test_a_transaction_may_span_batches_and_is_asked_about_once() -> None:
    asked: list[list[int]] = []

    def keep(xids: NDArray[np.uint32], commit_lsns: NDArray[np.uint64]) -> NDArray[np.bool_]:
        asked.append([*xids.tolist(), *commit_lsns.tolist()])
        return everything(xids, commit_lsns)

    cut = decoder(keep)
    first = cut.feed(batch(wire.begin(7, 700), DESCRIPTION, wire.insert(ORDERS, [b"1", None])))
    assert (len(rows(first)), len(first.transactions), cut.in_transaction) == (1, 0, True)
    second = cut.feed(batch(wire.insert(ORDERS, [b"2", None]), wire.commit(700, 748)))
    assert (len(rows(second)), len(second.transactions), cut.in_transaction) == (1, 1, False)
    assert rows(second)[0]["version"] == 700
    assert second.transactions.last_end_lsn == 748
    assert asked == [[7, 700]]


def test_transactions_tell_how_far_the_slot_may_go() -> None:
    seen = decoder(only(1)).feed(batch(*transaction(1), *transaction(2))).transactions
    assert seen.begun.kept.tolist() == [True, False]
    assert (seen.last_end_lsn, seen.leading(seen.begun.kept).last_end_lsn) == (248, 148)
    assert seen.leading(~seen.begun.kept).last_end_lsn is None
    assert Transactions.join([]).last_end_lsn is None


def test_transactions_of_all_batches_join_in_order() -> None:
    one = decoder()
    parts = [one.feed(batch(*transaction(number))).transactions for number in (1, 2, 3)]
    seen = Transactions.join(parts)
    assert seen.end_lsn.tolist() == [148, 248, 348]
    assert len(seen.leading(seen.begun.xid < 3)) == 2
    assert len(seen.leading(seen.begun.xid < 9)) == 3


CHANGED = {
    "column 'note' is missing": [ID],
    "column 'note' has the type with OID 3802, expected OID 25": [ID, Column("note", 3802)],
    "column 'id' is missing; column 'note' is missing": [Column("key", 20, identity=True)],
}


@pytest.mark.parametrize(("problem", "columns"), CHANGED.items(), ids=list(CHANGED))
def test_a_changed_wanted_column_is_refused_by_name(problem: str, columns: list[Column]) -> None:
    new = [b"1"] * len(columns)
    with pytest.raises(SchemaChangedError, match=problem) as refused:
        decoder().feed(batch(*transaction(1, wire.relation(ORDERS, columns), wire.insert(ORDERS, new))))
    assert "public.orders" in refused.value.message


OTHERS = {
    "dropped and added again": ([NOTE, ID], ["note"]),
    "exchanged": ([Column("a"), NOTE, Column("b"), ID], ["id"]),
    "the name was that of one added later": ([ID, Column("a"), Column("b"), NOTE], ["note"]),
    "one before the first": ([Column("a"), Column("b"), ID, NOTE], ["id"]),
}


@pytest.mark.parametrize(("columns", "named"), OTHERS.values(), ids=list(OTHERS))
def test_another_column_that_had_the_name_of_a_wanted_one_is_refused(columns: list[Column], named: list[str]) -> None:
    with pytest.raises(SchemaChangedError) as refused:
        decoder().feed(
            batch(*transaction(1, wire.relation(ORDERS, columns), wire.insert(ORDERS, [b"1"] * len(columns))))
        )
    found = re.findall(r"column '(\w+)' was another one, which had that name", refused.value.message)
    assert found == named
    assert ("A column of the key cannot be left out" in refused.value.message) == ("id" in named)


def test_a_changed_column_matters_only_to_kept_rows() -> None:
    altered = wire.relation(ORDERS, [ID])
    skipping = decoder(only(1, 4))
    skipping.feed(batch(*transaction(1, DESCRIPTION, wire.insert(ORDERS, [b"1", b"a"]))))
    skipping.feed(batch(*transaction(2, altered, wire.insert(ORDERS, [b"2"]))))
    with pytest.raises(SchemaChangedError, match="note"):
        skipping.feed(batch(*transaction(4, wire.insert(ORDERS, [b"3"]))))


def test_a_description_in_a_skipped_transaction_is_remembered() -> None:
    skipping = decoder(only(2))
    wider = wire.relation(ORDERS, [Column("before"), ID, NOTE])
    skipping.feed(batch(*transaction(1, wider, wire.insert(ORDERS, [b"x", b"1", b"a"]))))
    (row,) = rows(skipping.feed(batch(*transaction(2, wire.insert(ORDERS, [b"x", b"2", b"y"])))))
    assert row["new"] == {"id": 2, "note": "y"}


def test_a_description_that_is_repeated_is_taken_apart_once() -> None:
    changed = wire.relation(ORDERS, [ID, NOTE, Column("more")])
    messages = read_messages(batch(DESCRIPTION, changed, DESCRIPTION, wire.relation(OTHER, [ID]), DESCRIPTION))
    _, first, other, again, last = descriptions_of(messages, ORDERS, None).relations
    assert first is again is last
    assert first != other


def test_added_columns_are_skipped_and_reported() -> None:
    added = wire.relation(ORDERS, [Column("before"), ID, Column("between"), NOTE])
    reporting = decoder()
    (row,) = rows(reporting.feed(batch(*transaction(1, added, wire.insert(ORDERS, [b"x", b"1", None, b"a"])))))
    assert row["new"] == {"id": 1, "note": "a"}
    assert reporting.ignored_columns == ("before", "between")


def test_updates_are_refused_where_the_log_does_not_identify_the_key() -> None:
    unidentified = wire.relation(ORDERS, [Column("id", 20), Column("note", 25, identity=True)])
    insert, update = wire.insert(ORDERS, [b"1", b"a"]), wire.update(ORDERS, [b"1", b"b"])
    assert len(rows(decoder().feed(batch(*transaction(1, unidentified, insert))))) == 1
    with pytest.raises(TableError, match=r"replica identity .* column 'id'"):
        decoder().feed(batch(*transaction(1, unidentified, insert, update)))


def test_an_old_row_without_the_key_is_refused() -> None:
    delete = wire.delete(ORDERS, key=[None, b"a"])
    with pytest.raises(TableError, match=r"the table public\.orders .*old value of the key column 'id'"):
        decoder().feed(batch(*transaction(1, DESCRIPTION, delete)))


def test_a_row_without_a_key_is_refused() -> None:
    insert = wire.insert(ORDERS, [None, b"a"])
    with pytest.raises(SchemaChangedError, match=r"the table public\.orders .*without a value in the key column 'id'"):
        decoder().feed(batch(*transaction(1, DESCRIPTION, insert)))


def test_a_key_that_was_left_out_is_refused() -> None:
    update = wire.update(ORDERS, [Toast.UNCHANGED, b"a"])
    with pytest.raises(UnchangedToastError, match=r"the table public\.orders .*key column 'id'"):
        decoder().feed(batch(*transaction(1, DESCRIPTION, update)))


def test_a_refused_batch_leaves_the_decoder_as_it_was() -> None:
    retried = decoder()
    good = batch(*transaction(1, DESCRIPTION, wire.insert(ORDERS, [b"1", b"a"])))
    bad = batch(*transaction(1, wire.relation(ORDERS, [ID]), wire.insert(ORDERS, [b"1"])), wire.begin(2, 200))
    with pytest.raises(SchemaChangedError):
        retried.feed(bad)
    assert (retried.in_transaction, retried.ignored_columns) == (False, ())
    assert len(rows(retried.feed(good))) == 1


INSERT = wire.insert(ORDERS, [b"1", b"a"])
MALFORMED: dict[str, list[bytes]] = {
    "message type 0x53": [wire.begin(1, 100), b"S\0\0\0\1\1"],
    "message type 0xFF": [b"\xff"],
    "a message is empty": [wire.begin(1, 100), b""],
    "shorter than its type allows": [wire.begin(1, 100)[:-1]],
    "a row comes before the description of its table": [wire.begin(1, 100), INSERT],
    "a row change stands outside a transaction": [DESCRIPTION, INSERT],
    "a truncation stands outside a transaction": [wire.truncate(ORDERS)],
    "BEGIN and COMMIT do not alternate": [wire.begin(1, 100), wire.begin(2, 200)],
    "what was told of a transaction is taken back": [wire.begin(1, 100), wire.stream_abort(1)],
    "COMMIT and its BEGIN name different commit LSNs": [wire.begin(1, 100), wire.commit(101, 148)],
    "a commit LSN is out of range": [wire.begin(1, 2**63)],
    "another number of columns": [wire.begin(1, 100), DESCRIPTION, wire.insert(ORDERS, [b"1"])],
    "a row is cut short": [wire.begin(1, 100), DESCRIPTION, INSERT[:-1]],
    "a row does not end where it should": [wire.begin(1, 100), DESCRIPTION, INSERT + b"n"],
    "an old row does not end where it should": [
        wire.begin(1, 100),
        DESCRIPTION,
        wire.delete(ORDERS, key=[b"1", None]) + b"N",
    ],
    "another kind of tuple": [wire.begin(1, 100), DESCRIPTION, b"I" + wire.delete(ORDERS, key=[b"1", None])[1:]],
    "neither text, null nor unchanged": [wire.begin(1, 100), DESCRIPTION, INSERT.replace(b"t", b"b")],
    "an old row lacks a value as unchanged": [
        wire.begin(1, 100),
        DESCRIPTION,
        wire.delete(ORDERS, old=[b"1", Toast.UNCHANGED]),
    ],
    "a Truncate message has another length": [wire.begin(1, 100), wire.truncate(ORDERS) + b"\0"],
    "a Relation message ends too early": [DESCRIPTION[:-1]],
    "a Relation message is longer than its columns": [DESCRIPTION + b"\0"],
    "a Relation message names a column twice": [wire.relation(ORDERS, [ID, ID])],
    "client_encoding must be UTF8": [DESCRIPTION.replace(b"note", b"n\xf6te")],
}


@pytest.mark.parametrize(("problem", "messages"), MALFORMED.items(), ids=list(MALFORMED))
def test_a_log_that_cannot_be_understood_is_refused(problem: str, messages: list[bytes]) -> None:
    with pytest.raises(DefiniteError, match=problem):
        decoder().feed(batch(*messages))


def test_a_null_message_is_refused() -> None:
    with pytest.raises(DefiniteError, match="a message is null"):
        decoder().feed(pa.array([None], pa.binary()))


def test_changes_of_other_tables_are_not_even_looked_at() -> None:
    decoded = decoder().feed(batch(*transaction(1, wire.relation(OTHER, [ID]), wire.insert(OTHER, [])[:-2] + b"??")))
    assert len(rows(decoded)) == 0
    assert len(decoded.transactions) == 1


def test_values_are_decoded_by_column_not_by_row() -> None:
    calls: list[int] = []

    def counting(decode: Callable[[pa.Array[Any]], pa.Array[Any]]) -> Callable[[pa.Array[Any]], pa.Array[Any]]:
        def counted(values: pa.Array[Any]) -> pa.Array[Any]:
            calls.append(len(values))
            return decode(values)

        return counted

    counted = decoder(wanted=[WantedColumn("id", 2, 20, key=True, decode=counting(integer))])
    calls.clear()
    inserts = [wire.insert(ORDERS, [str(number).encode(), b"a"]) for number in range(1000)]
    decoded = counted.feed(batch(*transaction(1, DESCRIPTION, *inserts)))
    assert [row["new"]["id"] for row in rows(decoded)] == list(range(1000))
    assert calls == [1000]
