"""The laws of `ProgressStore`, held against every store."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from backfill_state import (
    Barrier,
    BarrierBackwardsError,
    ProgressStore,
    StateConflictError,
    StateLayoutError,
)
from backfill_state.layout import bounds_schema, progress_schema
from tests.state_store.streams import KEY, barrier, bounds_table, everything, key_of, progress_table, rows_of, stream

FIRST = barrier(1, (0, "eu", 7, False, 10), (2, None, None, True, 0))


def test_an_empty_store_knows_nothing(store: ProgressStore) -> None:
    assert (store.identity(), store.epoch(), store.offset()) == (None, None, None)
    assert store.progress() == progress_schema(pa.schema([])).empty_table()
    assert store.bounds() == bounds_schema(pa.schema([])).empty_table()


def test_a_begun_stream_is_known_before_its_bounds_are(store: ProgressStore) -> None:
    store.begin(stream())
    assert store.identity() == stream()
    assert store.epoch() is None
    assert store.progress() == progress_schema(KEY).empty_table()
    assert store.bounds() == bounds_schema(KEY).empty_table()


def test_a_stream_without_properties_comes_back_without(store: ProgressStore) -> None:
    store.begin(stream(properties=()))
    assert store.identity() == stream(properties=())


def test_beginning_the_same_stream_twice_keeps_its_bounds(store: ProgressStore) -> None:
    store.begin(stream())
    store.set_bounds(bounds_table([(0, "eu", 5)]))
    store.begin(stream())
    assert rows_of(store.bounds()) == [(0, "eu", 5)]


def test_another_stream_is_refused_and_the_difference_named(store: ProgressStore) -> None:
    store.begin(stream())
    other = stream(table="public.items", key=key_of(id=pa.int32()))
    before = everything(store)
    with pytest.raises(StateConflictError, match=r"another stream \(table: stored 'public.orders', given") as caught:
        store.begin(other)
    assert "key: stored region string, id int64, given id int32" in str(caught.value)
    assert everything(store) == before


def test_a_stream_that_has_reached_a_barrier_cannot_begin_again(store: ProgressStore) -> None:
    store.begin(stream())
    store.commit(FIRST)
    with pytest.raises(StateConflictError, match="already reached epoch 1; go on from its offset, or reset"):
        store.begin(stream())


def test_bounds_may_be_cut_anew_until_the_first_barrier(store: ProgressStore) -> None:
    store.begin(stream())
    store.set_bounds(bounds_table([(0, "eu", 5), (1, "us", 5)]))
    store.set_bounds(bounds_table([(1, "us", 9), (0, None, None)]))
    assert rows_of(store.bounds()) == [(0, None, None), (1, "us", 9)]
    store.commit(FIRST)
    with pytest.raises(StateConflictError, match="bounds are fixed after the first barrier"):
        store.set_bounds(bounds_table([(0, "eu", 5)]))
    assert rows_of(store.bounds()) == [(0, None, None), (1, "us", 9)]


def test_bounds_and_barriers_need_a_stream(store: ProgressStore) -> None:
    with pytest.raises(StateConflictError, match="no stream has begun"):
        store.set_bounds(bounds_table([]))
    with pytest.raises(StateConflictError, match="no stream has begun"):
        store.commit(FIRST)


def test_a_barrier_moves_epoch_offset_and_progress_together(store: ProgressStore) -> None:
    store.begin(stream())
    store.commit(FIRST)
    assert (store.epoch(), store.offset()) == (1, '{"epoch":1}')
    assert rows_of(store.progress()) == [(0, "eu", 7, False, 10), (2, None, None, True, 0)]


def test_a_barrier_replaces_the_vnodes_it_names_and_keeps_the_others(store: ProgressStore) -> None:
    store.begin(stream())
    store.commit(FIRST)
    store.commit(barrier(2, (3, "us", 1, False, None), (0, None, None, True, 12)))
    assert rows_of(store.progress()) == [
        (0, None, None, True, 12),
        (2, None, None, True, 0),
        (3, "us", 1, False, None),
    ]


def test_a_barrier_at_which_no_vnode_moved_moves_the_epoch(store: ProgressStore) -> None:
    store.begin(stream())
    store.commit(FIRST)
    store.commit(barrier(2))
    assert store.epoch() == 2
    assert store.progress().num_rows == 2


def test_epochs_may_be_left_out_and_begin_at_nought(store: ProgressStore) -> None:
    store.begin(stream())
    store.commit(barrier(0, (0, "eu", 1, False, 1)))
    store.commit(barrier(2**63 - 1, (0, "eu", 2, False, 2)))
    assert store.epoch() == 2**63 - 1


def test_the_same_barrier_again_changes_nothing(store: ProgressStore) -> None:
    store.begin(stream())
    store.commit(FIRST)
    before = everything(store)
    store.commit(FIRST)
    store.commit(barrier(1, (9, "zz", 9, True, 9)))
    assert everything(store) == before


def test_the_same_epoch_with_another_offset_is_refused(store: ProgressStore) -> None:
    store.begin(stream())
    store.commit(FIRST)
    before = everything(store)
    with pytest.raises(StateConflictError, match="epoch 1 is stored with another offset"):
        store.commit(barrier(1, offset="elsewhere"))
    assert everything(store) == before


def test_a_barrier_never_moves_backwards(store: ProgressStore) -> None:
    store.begin(stream())
    store.commit(barrier(8, (0, "eu", 7, False, 10)))
    before = everything(store)
    with pytest.raises(BarrierBackwardsError, match=r"at epoch 8 .* given epoch 7") as caught:
        store.commit(barrier(7, (0, "eu", 1, False, 1)))
    assert (caught.value.stored, caught.value.given) == (8, 7)
    assert everything(store) == before


def test_a_rebuild_replaces_whatever_was_there(store: ProgressStore) -> None:
    store.begin(stream("old"))
    store.set_bounds(bounds_table([(0, "eu", 1), (1, "us", 1)]))
    store.commit(barrier(9, (5, "eu", 1, True, 3)))
    key = key_of(day=pa.date32())
    rebuilt = barrier(4, (0, None, True, 3), key=key)
    for _ in range(2):
        store.rebuild(stream("new", key), bounds_table([(0, None)], key), rebuilt)
        assert store.identity() == stream("new", key)
        assert (store.epoch(), store.offset()) == (4, rebuilt.offset)
        assert store.bounds() == bounds_table([(0, None)], key)
        assert store.progress() == rebuilt.changed


def test_a_rebuild_needs_nothing_to_be_there(store: ProgressStore) -> None:
    store.rebuild(stream(), bounds_table([]), FIRST)
    assert store.progress() == FIRST.changed


def test_a_rebuild_that_does_not_fit_leaves_the_old_state(store: ProgressStore) -> None:
    store.begin(stream("old"))
    store.commit(FIRST)
    before = everything(store)
    key = key_of(id=pa.int32())
    with pytest.raises(StateLayoutError):
        store.rebuild(stream("new", key), bounds_table([], key), FIRST)
    with pytest.raises(StateLayoutError):
        store.rebuild(stream("new"), bounds_table([], key), FIRST)
    assert everything(store) == before


def test_a_reset_store_is_as_new(store: ProgressStore) -> None:
    store.reset()
    new = everything(store)
    store.begin(stream())
    store.commit(FIRST)
    store.reset()
    assert everything(store) == new
    store.begin(stream("another"))
    assert store.identity() == stream("another")


def test_a_closed_store_goes_on_when_it_is_used_again(store: ProgressStore) -> None:
    with store as entered:
        entered.begin(stream())
    store.close()
    store.close()
    store.commit(FIRST)
    assert store.epoch() == 1


def test_what_is_read_does_not_change_when_the_store_does(store: ProgressStore) -> None:
    store.begin(stream())
    store.commit(FIRST)
    read = store.progress()
    store.commit(barrier(2, (0, None, None, True, 99)))
    assert read == FIRST.changed


def test_offsets_and_names_may_be_any_text(store: ProgressStore) -> None:
    odd = 'é "quoted" \'; DROP TABLE stream; -- \U0001f980 \n' + "x" * 100_000
    store.begin(stream(table=odd, properties=((odd, odd), ("", ""))))
    store.commit(barrier(1, offset=odd))
    assert store.offset() == odd
    assert store.identity() == stream(table=odd, properties=((odd, odd), ("", "")))


def test_nullability_and_metadata_of_a_key_do_not_matter(store: ProgressStore) -> None:
    strict = pa.schema([field.with_nullable(False).with_metadata({"a": "b"}) for field in KEY], metadata={"c": "d"})
    store.begin(stream(key=strict))
    store.begin(stream())
    kept = barrier(1, (0, "eu", 1, False, 1)).changed
    store.commit(Barrier(1, "", kept.cast(progress_schema(strict))))
    assert store.progress().schema.equals(progress_schema(KEY), check_metadata=True)


def test_sliced_and_chunked_tables_are_stored_like_any_other(store: ProgressStore) -> None:
    whole = progress_table([(vnode, "eu", vnode, False, vnode) for vnode in range(10)])
    store.begin(stream())
    store.commit(Barrier(1, "", pa.concat_tables([whole.slice(7), whole.slice(2, 3)])))
    assert [row[0] for row in rows_of(store.progress())] == [2, 3, 4, 7, 8, 9]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([(0, "eu", 1, False, 1), (0, "us", 1, False, 1)], "one is null or comes twice"),
        ([(None, "eu", 1, False, 1)], "one is null or comes twice"),
        ([(0, "eu", None, False, 1)], "a value for every key column or for none"),
        ([(0, "eu", 1, None, 1)], "backfill_finished is true or false"),
    ],
)
def test_a_barrier_with_impossible_rows_cannot_be_made(rows: list[tuple[object, ...]], problem: str) -> None:
    with pytest.raises(StateLayoutError, match=re.escape(problem)):
        Barrier(1, "", progress_table(rows))


@pytest.mark.parametrize("epoch", [-1, 2**63])
def test_an_epoch_is_a_64_bit_number(epoch: int) -> None:
    with pytest.raises(StateLayoutError, match=str(epoch)):
        barrier(epoch)


def test_a_barrier_has_the_columns_of_the_layout() -> None:
    good = FIRST.changed
    for bad in (good.drop_columns("vnode"), good.drop_columns(["region", "id"]), good.append_column("x", good[0])):
        with pytest.raises(StateLayoutError):
            Barrier(1, "", bad)


def test_rows_of_another_key_are_refused_and_both_keys_named(store: ProgressStore) -> None:
    store.begin(stream())
    key = key_of(id=pa.int64(), region=pa.string())
    with pytest.raises(StateLayoutError, match=r"vnode int32, id int64, region string, .*vnode int32, region string"):
        store.commit(barrier(1, key=key))
    with pytest.raises(StateLayoutError):
        store.set_bounds(bounds_table([], key))
    with pytest.raises(StateLayoutError, match="comes twice"):
        store.set_bounds(bounds_table([(0, "a", 1), (0, "b", 1)]))
    assert store.epoch() is None


def test_a_property_is_named_once() -> None:
    with pytest.raises(StateLayoutError, match="named once"):
        stream(properties=(("slot", "a"), ("slot", "b")))
