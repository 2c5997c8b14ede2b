"""The laws of the `Upstream` contract. See `tests.contract.laboratory` for how to hold a new adapter to them."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from random import Random

import pytest

from backfill.epoch import Epoch
from backfill.errors import DataLossError, KeyTextError, OptionsError, SnapshotGoneError
from backfill.plan import Request
from backfill.upstream import EARLIEST, LATEST, ChangeReader, Pin, Step, Upstream
from backfill.vnode import WHOLE_TABLE, Key, KeyRange, merged, ranges_between
from tests.contract.laboratory import (
    VALUE,
    Commit,
    Held,
    HidingLaboratory,
    KeyValue,
    Laboratory,
    Rows,
    Write,
    applied,
    commits_of,
    delete,
    insert,
    key_batch,
    keys_of,
    move,
    rows_of,
    update,
)

UNLIMITED = 1 << 62
STREAM = "laws0001"


# -- what every test does ----------------------------------------------------------------------------------------


def begun(laboratory: Laboratory) -> Upstream:
    """An adapter whose place in the log has been made."""
    upstream = laboratory.open()
    upstream.attach(upstream.bookmark(STREAM), None)
    return upstream


def reopened(laboratory: Laboratory, after: Epoch) -> Upstream:
    """A new process that finds its place again."""
    upstream = laboratory.open()
    upstream.attach(upstream.bookmark(STREAM), after)
    return upstream


def now_and_then(laboratory: Laboratory, upstream: Upstream, after: Epoch) -> Iterator[Upstream]:
    """This process, and another one after it."""
    yield upstream
    yield reopened(laboratory, after)


def fill(laboratory: Laboratory, count: int = 40) -> None:
    """Rows under the first keys, written in no order."""
    keys = list(laboratory.keys[:count])
    Random(count).shuffle(keys)
    laboratory.write(*[insert(key, f"at first {number}") for number, key in enumerate(keys)])


def pinned(upstream: Upstream, after: Epoch | None = None) -> Pin:
    """A state that snapshot rows can be read at."""
    step = upstream.next_epoch(after, snapshot=True, max_changes=UNLIMITED, until=None)
    assert step.pin is not None
    assert step.pin.epoch == step.epoch
    return step.pin


def followed(upstream: Upstream, after: Epoch, *, most: int = UNLIMITED, until: str | None = None) -> Epoch:
    """The next epoch of a stream that only follows changes."""
    step = upstream.next_epoch(after, snapshot=False, max_changes=most, until=until)
    assert step.pin is None
    return step.epoch


def held(upstream: Upstream, after: Epoch, *, most: int = UNLIMITED) -> Epoch:
    """The next epoch of a stream whose snapshot is held."""
    step = upstream.held_epoch(after, max_changes=most)
    assert step.pin is None
    return step.epoch


def read(
    upstream: Upstream, pin: Pin, ranges: Sequence[KeyRange] = (WHOLE_TABLE,)
) -> list[tuple[KeyValue, str | None]]:
    return rows_of(upstream.reader().read(pin.token, ranges), upstream.schema())


def commits(upstream: Upstream, after: Epoch, upto: Epoch) -> list[Commit]:
    return commits_of(upstream.changes(after, upto), upstream.schema())


def now(laboratory: Laboratory) -> str:
    """The position of this moment, as a person may name it."""
    return span(laboratory, LATEST, LATEST).after


def span(laboratory: Laboratory, starting: str, ending: str) -> ChangeReader:
    """What reads the changes between two positions."""
    upstream = laboratory.reading(laboratory.open().bookmark(STREAM))
    reader = upstream.span(starting, ending)
    upstream.close()
    return reader


def spanned(laboratory: Laboratory, starting: str, ending: str = LATEST) -> list[Commit]:
    return commits_of(span(laboratory, starting, ending).read(), laboratory.open().schema())


def led(rows: Rows, by: Iterable[Commit]) -> Rows:
    for commit in by:
        rows = applied(rows, commit)
    return rows


def key_text(upstream: Upstream, place: int) -> Key:
    """The text of the key of the row at this place in the pinned state, counted from 0; not of the last row."""
    (extent,) = upstream.measure([Request(WHOLE_TABLE, place + 1)])
    assert extent.last is not None
    return extent.last


def in_order(laboratory: Laboratory, rows: Rows) -> list[tuple[KeyValue, str | None]]:
    return [(key, rows[key]) for key in laboratory.keys if key in rows]


class UpstreamLaws:
    """Derive from it where there is a fixture `laboratory`; every test begins with an empty table."""

    # -- the table ---------------------------------------------------------------------------------------------------

    def test_the_schema_names_the_key_in_its_order_and_the_columns_of_every_row(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        schema = upstream.schema()
        assert len(schema.key) == len(laboratory.keys[0])
        assert sorted(schema.columns.names) == sorted([*schema.key, VALUE])
        assert set(schema.output) <= set(schema.columns.names)
        assert [field.name for field in schema.key_schema] == list(schema.key)
        assert [key for key, _ in read(upstream, pinned(upstream))] == list(laboratory.keys[:40])

    def test_the_table_is_the_same_one_to_every_process(self, laboratory: Laboratory) -> None:
        assert laboratory.open().identity() == laboratory.open().identity()
        assert laboratory.open().schema() == laboratory.open().schema()

    def test_the_size_is_a_guess_that_can_be_divided_by(self, laboratory: Laboratory) -> None:
        for count in (0, 40):
            fill(laboratory, count)
            size = begun(laboratory).size()
            assert size.row_count >= 1
            assert size.row_bytes >= 1

    # -- bounds and typed keys ---------------------------------------------------------------------------------------

    @pytest.mark.parametrize("vnodes", [1, 2, 8, 200])
    def test_bounds_are_few_enough_distinct_and_ascending(self, laboratory: Laboratory, vnodes: int) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        bounds = upstream.bounds(vnodes)
        assert len(bounds) <= vnodes - 1
        assert len(set(bounds)) == len(bounds)
        pin = pinned(upstream)
        assert [row for item in ranges_between(bounds) for row in read(upstream, pin, [item])] == read(upstream, pin)
        for one, two in pairwise(bounds):
            assert upstream.covered(upstream.typed([two]), (KeyRange(one, None),)).to_pylist() == [True]
            assert upstream.covered(upstream.typed([one]), (KeyRange(one, None),)).to_pylist() == [False]

    def test_bounds_cut_the_table_into_about_equal_parts(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        ranges = ranges_between(upstream.bounds(5))
        pinned(upstream)
        counts = [extent.row_count for extent in upstream.measure([Request(item, 100) for item in ranges])]
        assert sum(counts) == 40
        assert max(counts) <= 16

    def test_a_part_of_the_table_is_the_rows_between_two_keys_and_is_cut_within(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        texts = [key_text(upstream, place) for place in range(39)]
        absent = (7, 20, 21)
        laboratory.write(*[delete(laboratory.keys[place]) for place in absent])
        rows = in_order(laboratory, laboratory.rows())
        pin = pinned(upstream, pin.epoch)
        for first, last in [
            (None, None),
            (None, 12),
            (5, None),
            (5, 30),
            (7, 21),
            (8, 20),
            (0, 38),
            (20, 21),
            (9, 9),
            (30, 4),
        ]:
            within = upstream.range_of(*(None if place is None else texts[place] for place in (first, last)))
            inside = laboratory.keys[first or 0 : 40 if last is None else last + 1]
            wanted = [row for row in rows if row[0] in inside]
            assert read(upstream, pin, [within]) == wanted
            for vnodes in (1, 2, 8, 200):
                cut = ranges_between(upstream.bounds(vnodes, within), within)
                assert 1 <= len(cut) <= vnodes
                assert [row for item in cut for row in read(upstream, pin, [item])] == wanted
                assert len(set(cut)) == len(cut)

    def test_what_is_no_key_names_no_part_of_the_table(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pinned(upstream)
        with pytest.raises(KeyTextError, match="the table's key"):
            upstream.range_of(None, (*key_text(upstream, 3), "1"))

    def test_an_empty_table_can_be_cut_and_read(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        ranges = ranges_between(upstream.bounds(8))
        pin = pinned(upstream)
        assert [extent.row_count for extent in upstream.measure([Request(item, 5) for item in ranges])] == [0] * len(
            ranges
        )
        assert read(upstream, pin, merged(ranges)) == []

    def test_typed_keys_have_the_types_and_names_of_the_key_and_their_order(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pinned(upstream)
        places = [20, 0, 38, 7, 0]
        found = upstream.typed([key_text(upstream, place) for place in places])
        assert found.schema.equals(upstream.schema().key_schema)
        assert keys_of(found) == [laboratory.keys[place] for place in places]
        assert upstream.typed([]).num_rows == 0
        assert upstream.typed([]).schema.equals(upstream.schema().key_schema)

    # -- the place in the log ----------------------------------------------------------------------------------------

    def test_a_stream_has_one_bookmark_and_two_streams_have_two(self, laboratory: Laboratory) -> None:
        assert laboratory.open().bookmark(STREAM) == laboratory.open().bookmark(STREAM)

    def test_making_the_place_again_loses_nothing(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        laboratory.write(delete(laboratory.keys[0]))
        upstream.attach(upstream.bookmark(STREAM), None)
        upstream = begun(laboratory)
        later = pinned(upstream, epoch).epoch
        assert [commit.writes for commit in commits(upstream, epoch, later)] == [(Write(laboratory.keys[0], None),)]

    def test_finding_the_place_again_loses_nothing(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        epoch = pinned(begun(laboratory)).epoch
        laboratory.write(delete(laboratory.keys[0]))
        upstream = reopened(laboratory, epoch)
        upstream.attach(upstream.bookmark(STREAM), epoch)
        later = pinned(upstream, epoch).epoch
        assert [commit.writes for commit in commits(upstream, epoch, later)] == [(Write(laboratory.keys[0], None),)]

    def test_naming_a_bookmark_makes_nothing(self, laboratory: Laboratory) -> None:
        epoch = pinned(begun(laboratory)).epoch
        bookmark = laboratory.open().bookmark("other001")
        laboratory.lose_changes(bookmark)
        laboratory.write(insert(laboratory.keys[0]))
        upstream = reopened(laboratory, epoch)
        assert len(commits(upstream, epoch, pinned(upstream, epoch).epoch)) == 1

    def test_changes_that_are_lost_are_not_passed_over(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        laboratory.write(insert(laboratory.keys[0]))
        upstream.close()
        laboratory.lose_changes(upstream.bookmark(STREAM))
        with pytest.raises(DataLossError):
            reopened(laboratory, epoch)

    def test_letting_go_of_the_place_may_be_done_again(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        upstream.detach(upstream.bookmark(STREAM))
        upstream.detach(upstream.bookmark(STREAM))
        laboratory.open().detach(upstream.bookmark(STREAM))

    # -- states ------------------------------------------------------------------------------------------------------

    def test_epochs_are_counted_from_one(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        first = pinned(upstream).epoch
        second = pinned(upstream, first).epoch
        laboratory.write(insert(laboratory.keys[0]))
        third = followed(upstream, second)
        assert (first.number, second.number, third.number) == (1, 2, 3)

    def test_a_stream_may_begin_without_a_snapshot(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        step = upstream.next_epoch(None, snapshot=False, max_changes=UNLIMITED, until=None)
        assert (step.epoch.number, step.pin) == (1, None)
        laboratory.write(update(laboratory.keys[0]))
        later = followed(upstream, step.epoch)
        assert [commit.writes for commit in commits(upstream, step.epoch, later)] == [(update(laboratory.keys[0]),)]

    def test_a_later_state_shows_everything_that_an_earlier_one_shows(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        for number in range(4):
            laboratory.write(insert(laboratory.keys[number]))
            step = upstream.next_epoch(epochs[-1], snapshot=True, max_changes=1 + number % 2, until=None)
            epochs.append(step.epoch)
        for one, two in pairwise(epochs):
            assert upstream.reached(two, one.position)
            assert not upstream.reached(one, two.position), "there is a commit in between"
        assert upstream.reached(epochs[-1], epochs[0].position)
        assert all(upstream.reached(epoch, epoch.position) for epoch in epochs)

    def test_the_present_shows_what_is_visible_now_and_a_later_state_shows_the_present(
        self, laboratory: Laboratory
    ) -> None:
        upstream = begun(laboratory)
        before = pinned(upstream).epoch
        laboratory.write(insert(laboratory.keys[0]))
        present = upstream.present()
        assert not upstream.reached(before, present)
        assert upstream.reached(followed(upstream, before), present)
        assert upstream.reached(pinned(upstream, before).epoch, present)

    # -- snapshot rows -----------------------------------------------------------------------------------------------

    def test_reading_gives_exactly_the_pinned_state_in_key_order(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        expected = in_order(laboratory, laboratory.rows())
        assert len(expected) == 40
        laboratory.write(
            delete(laboratory.keys[0]), update(laboratory.keys[1]), move(laboratory.keys[2], laboratory.keys[40])
        )
        assert read(upstream, pin) == expected
        assert read(upstream, pin) == expected

    def test_a_null_is_read_as_null_and_not_as_an_empty_text(self, laboratory: Laboratory) -> None:
        laboratory.write(insert(laboratory.keys[0], None), insert(laboratory.keys[1], ""))
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        assert [value for _, value in read(upstream, pinned(upstream, epoch))] == [None, ""]
        laboratory.write(update(laboratory.keys[0], ""), update(laboratory.keys[1], None))
        (commit,) = commits(upstream, epoch, pinned(upstream, epoch).epoch)
        assert [write.value for write in commit.writes] == ["", None]

    def test_what_happened_before_the_pin_is_read_and_what_happened_after_is_not(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        held = laboratory.hold(insert(laboratory.keys[3], "held"))
        laboratory.write(insert(laboratory.keys[5], "before"))
        pin = pinned(upstream)
        laboratory.write(insert(laboratory.keys[7], "after"))
        held.commit()
        assert read(upstream, pin) == [(laboratory.keys[5], "before")]

    def test_a_range_excludes_its_lower_end_and_includes_its_upper_end(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        third, ninth = key_text(upstream, 3), key_text(upstream, 9)
        for item, expected in [
            (KeyRange(None, third), range(4)),
            (KeyRange(third, ninth), range(4, 10)),
            (KeyRange(ninth, None), range(10, 40)),
            (KeyRange(third, third), range(0)),
        ]:
            assert [key for key, _ in read(upstream, pin, [item])] == [laboratory.keys[at] for at in expected]

    def test_several_ranges_are_read_one_after_the_other(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        texts = [key_text(upstream, place) for place in (4, 9, 20)]
        ranges = (KeyRange(None, texts[0]), KeyRange(texts[1], texts[2]))
        assert [key for key, _ in read(upstream, pin, ranges)] == [
            laboratory.keys[at] for at in (*range(5), *range(10, 21))
        ]
        assert read(upstream, pin, ()) == []

    def test_a_position_outlives_its_row(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        text = key_text(upstream, 10)
        laboratory.write(delete(laboratory.keys[10]))
        pin = pinned(upstream, pin.epoch)
        assert [key for key, _ in read(upstream, pin, [KeyRange(text, None)])] == list(laboratory.keys[11:40])
        assert [key for key, _ in read(upstream, pin, [KeyRange(None, text)])] == list(laboratory.keys[:10])

    def test_several_readers_read_one_state_from_where_they_were_sent(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        ranges = ranges_between([key_text(upstream, place) for place in (9, 19)])
        sent = pickle.dumps(upstream.reader())
        readers = [pickle.loads(sent).read(pin.token, [item]) for item in ranges]  # noqa: S301 - our own bytes
        laboratory.write(delete(laboratory.keys[0]), delete(laboratory.keys[15]), delete(laboratory.keys[30]))
        found: list[KeyValue] = []
        for reader in readers:
            found += [key for key, _ in rows_of(reader, upstream.schema())]
        assert found == list(laboratory.keys[:40])

    def test_without_a_token_each_reading_is_of_the_state_of_its_own_moment(self, laboratory: Laboratory) -> None:
        """Also where no place in the log was ever made, and when the upstream that gave the reader is long closed."""
        fill(laboratory)
        upstream = laboratory.open()
        reader, ranges, schema = upstream.reader(), ranges_between(upstream.bounds(4)), upstream.schema()
        upstream.close()
        for key in laboratory.keys[10:12]:
            laboratory.write(delete(key))
            assert rows_of(reader.read(None, ranges), schema) == in_order(laboratory, laboratory.rows())

    def test_without_a_token_all_ranges_of_one_reading_are_of_one_state(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = laboratory.open()
        first, *others = ranges_between(upstream.bounds(4))
        before = in_order(laboratory, laboratory.rows())
        reading = iter(upstream.reader().read(None, [first, *others]))
        begun = next(reading)
        laboratory.write(delete(laboratory.keys[39]), move(laboratory.keys[38], laboratory.keys[40]))
        assert rows_of([begun, *reading], upstream.schema()) == before

    def test_rows_are_looked_up_by_their_keys_in_the_pinned_state(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        asked = [laboratory.keys[at] for at in (41, 7, 0, 39, 20)]
        laboratory.write(update(asked[1]), delete(asked[2]), insert(asked[0]), move(asked[3], laboratory.keys[42]))
        found = rows_of(upstream.lookup(pin, key_batch(upstream, asked)), upstream.schema())
        shown = dict(read(upstream, pin))
        assert sorted(found) == sorted((key, shown[key]) for key in asked[1:])
        assert rows_of(upstream.lookup(pin, key_batch(upstream, [])), upstream.schema()) == []

    def test_a_state_may_be_released_more_than_once(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        pin = pinned(upstream)
        upstream.release(pin)
        upstream.release(pin)

    def test_a_state_taken_again_is_what_the_changes_lead_to(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        first = pinned(upstream)
        rows = dict(read(upstream, first))
        laboratory.write(update(laboratory.keys[0]))
        upstream = reopened(laboratory, first.epoch)
        pin = upstream.repin(first.epoch)
        assert pin.epoch.number == first.epoch.number
        assert upstream.reached(pin.epoch, first.epoch.position)
        laboratory.write(delete(laboratory.keys[1]))
        for commit in commits(upstream, first.epoch, pin.epoch):
            rows = applied(rows, commit)
        assert dict(read(upstream, pin)) == rows

    # -- measuring ---------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("limit", [1, 39, 40, UNLIMITED])
    def test_measuring_finds_exactly_so_many_rows_and_the_key_of_the_last(
        self, laboratory: Laboratory, limit: int
    ) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pinned(upstream)
        (extent,) = upstream.measure([Request(WHOLE_TABLE, limit)])
        if limit < 40:
            assert extent.row_count == limit
            assert extent.last is not None
            assert keys_of(upstream.typed([extent.last])) == [laboratory.keys[limit - 1]]
        else:
            assert (extent.row_count, extent.last) == (40, None)

    def test_measuring_is_of_the_pinned_state(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        laboratory.write(*[delete(key) for key in laboratory.keys[:20]])
        assert [extent.row_count for extent in upstream.measure([Request(WHOLE_TABLE, 100)])] == [40]
        pinned(upstream, pin.epoch)
        assert [extent.row_count for extent in upstream.measure([Request(WHOLE_TABLE, 100)])] == [20]

    @pytest.mark.parametrize("step", [1, 7])
    def test_measuring_on_from_the_last_key_passes_every_row_once(self, laboratory: Laboratory, step: int) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        found: list[KeyValue] = []
        after: Key | None = None
        for _ in range(41):
            (extent,) = upstream.measure([Request(KeyRange(after, None), step)])
            part = read(upstream, pin, [KeyRange(after, extent.last)])
            assert len(part) == extent.row_count
            found += [key for key, _ in part]
            after = extent.last
            if after is None:
                break
        assert found == list(laboratory.keys[:40])

    def test_many_ranges_are_measured_at_once_each_for_itself(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pinned(upstream)
        ranges = ranges_between([key_text(upstream, place) for place in (0, 9, 19, 38)])
        extents = upstream.measure([Request(item, 5) for item in ranges])
        assert [extent.row_count for extent in extents] == [1, 5, 5, 5, 1]
        assert [extent.last is None for extent in extents] == [True, False, False, False, True]
        assert upstream.measure([]) == ()

    # -- placing keys ------------------------------------------------------------------------------------------------

    def test_a_key_is_covered_exactly_if_a_row_with_it_would_be_read(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        texts = [key_text(upstream, place) for place in (4, 12, 20, 37)]
        for coverage in [
            (),
            (WHOLE_TABLE,),
            (KeyRange(None, texts[0]),),
            (KeyRange(texts[3], None),),
            (KeyRange(None, texts[0]), KeyRange(texts[1], texts[2])),
            (KeyRange(texts[0], texts[1]), KeyRange(texts[2], None)),
        ]:
            inside = {key for key, _ in read(upstream, pin, coverage)}
            shuffled = list(laboratory.keys[:40])
            Random(1).shuffle(shuffled)
            found = upstream.covered(key_batch(upstream, shuffled), coverage)
            assert found.null_count == 0
            assert found.to_pylist() == [key in inside for key in shuffled]

    def test_keys_that_have_no_row_are_placed_between_those_that_have_one(self, laboratory: Laboratory) -> None:
        laboratory.write(*[insert(key) for key in laboratory.keys[0:40:2]])
        upstream = begun(laboratory)
        pinned(upstream)
        seventh = key_text(upstream, 7)
        found = upstream.covered(key_batch(upstream, laboratory.keys[:40]), (KeyRange(None, seventh),))
        assert found.to_pylist() == [place <= 14 for place in range(40)]

    def test_no_keys_are_placed_without_complaint(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        pinned(upstream)
        coverage = (KeyRange(None, key_text(upstream, 1)),)
        assert upstream.covered(key_batch(upstream, []), coverage).to_pylist() == []

    # -- changes -----------------------------------------------------------------------------------------------------

    def test_changes_are_exactly_the_commits_in_between_in_their_order(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 5)
        upstream = begun(laboratory)
        laboratory.write(update(keys[0], "before"))
        first = pinned(upstream).epoch
        laboratory.write(update(keys[0], "one"))
        laboratory.hold(update(keys[1], "rolled back")).roll_back()
        laboratory.write(move(keys[0], keys[10], "two"))
        laboratory.write(delete(keys[1]), insert(keys[0], "three"))
        second = pinned(upstream, first).epoch
        laboratory.write(insert(keys[20], "after"))
        found = commits(upstream, first, second)
        assert [set(commit.writes) for commit in found] == [
            {update(keys[0], "one")},
            {delete(keys[0]), insert(keys[10], "two")},
            {delete(keys[1]), insert(keys[0], "three")},
        ]

    def test_changes_to_one_row_in_one_transaction_lead_to_what_it_left(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 5)
        upstream = begun(laboratory)
        before, first = laboratory.rows(), pinned(upstream).epoch
        laboratory.write(
            update(keys[0], "1"), move(keys[0], keys[9]), update(keys[9], "2"), delete(keys[1]), insert(keys[1], "3")
        )
        (commit,) = commits(upstream, first, pinned(upstream, first).epoch)
        assert applied(before, commit) == laboratory.rows()

    def test_changes_are_the_same_again_until_they_are_acknowledged(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        for number in range(3):
            laboratory.write(update(laboratory.keys[number]), insert(laboratory.keys[40 + number]))
            laboratory.write(delete(laboratory.keys[20 + number]))
            epochs.append(pinned(upstream, epochs[-1]).epoch)
        parts = [commits(upstream, one, two) for one, two in pairwise(epochs)]
        assert [len(part) for part in parts] == [2, 2, 2]
        for adapter in now_and_then(laboratory, upstream, epochs[0]):
            assert [commits(adapter, one, two) for one, two in pairwise(epochs)] == parts
            assert commits(adapter, epochs[0], epochs[-1]) == [commit for part in parts for commit in part]

    def test_a_commit_carries_its_own_version_on_each_of_its_changes(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        first = pinned(upstream).epoch
        for at in range(0, 12, 3):
            laboratory.write(*[insert(key) for key in laboratory.keys[at : at + 3]])
        found = commits(upstream, first, pinned(upstream, first).epoch)
        assert [len(commit.writes) for commit in found] == [3, 3, 3, 3]
        versions = [commit.version for commit in found]
        assert versions == sorted(versions)

    def test_a_transaction_belongs_to_the_first_state_that_shows_it(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        held = laboratory.hold(update(keys[0], "held"))
        laboratory.write(update(keys[1], "one"))
        epochs.append(pinned(upstream, epochs[-1]).epoch)
        laboratory.write(update(keys[2], "two"))
        held.commit()
        laboratory.write(update(keys[3], "three"))
        epochs.append(pinned(upstream, epochs[-1]).epoch)
        first, second = (commits(upstream, one, two) for one, two in pairwise(epochs))
        assert [commit.writes for commit in first] == [(update(keys[1], "one"),)]
        assert {commit.writes for commit in second} == {
            (update(keys[0], "held"),),
            (update(keys[2], "two"),),
            (update(keys[3], "three"),),
        }

    def test_between_two_states_with_nothing_in_between_there_are_no_changes(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        first = pinned(upstream).epoch
        assert commits(upstream, first, pinned(upstream, first).epoch) == []

    def test_a_change_is_shown_by_a_state_exactly_if_it_came_before_it(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        held = laboratory.hold(insert(laboratory.keys[30], "held"))
        for number in range(3):
            laboratory.write(insert(laboratory.keys[number]), insert(laboratory.keys[10 + number]))
            epochs.append(pinned(upstream, epochs[-1]).epoch)
        held.commit()
        epochs.append(pinned(upstream, epochs[-1]).epoch)
        for epoch in epochs:
            earlier = {commit.version for commit in commits(upstream, epochs[0], epoch)}
            for batch in upstream.changes(epochs[0], epochs[-1]):
                found = upstream.shown(epoch.position, batch)
                assert found.null_count == 0
                assert found.to_pylist() == [version in earlier for version in batch["version"].to_pylist()]

    # -- following ---------------------------------------------------------------------------------------------------

    def test_where_nothing_has_happened_the_state_stays(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        assert followed(upstream, epoch) == epoch
        laboratory.hold(update(laboratory.keys[0])).roll_back()
        assert followed(upstream, epoch) == epoch
        laboratory.write(update(laboratory.keys[0]))
        later = followed(upstream, epoch)
        assert later != epoch
        assert followed(upstream, later) == later
        assert followed(reopened(laboratory, later), later) == later

    def test_the_change_over_from_snapshots_to_the_log_loses_and_repeats_nothing(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        before = laboratory.rows()
        held = laboratory.hold(update(keys[0], "held"))
        laboratory.write(update(keys[1], "one"))
        epoch = pinned(upstream).epoch
        rows = dict(read(upstream, pinned(upstream, epoch)))
        assert rows == {**before, keys[1]: "one"}
        epoch = pinned(upstream, epoch).epoch
        laboratory.write(update(keys[2], "two"))
        held.commit()
        for _ in range(5):
            later = followed(upstream, epoch)
            for commit in commits(upstream, epoch, later):
                rows = applied(rows, commit)
            epoch = later
        assert rows == laboratory.rows()

    def test_from_the_log_there_is_a_way_back_to_snapshots_and_again(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        rows, epoch = dict(read(upstream, pin)), pin.epoch
        open_one = laboratory.hold(update(keys[0], "open"))
        for number in range(3):
            laboratory.write(update(keys[1], f"log {number}"), insert(keys[20 + number]))
            later = followed(upstream, epoch)
            for commit in commits(upstream, epoch, later):
                rows = applied(rows, commit)
            upstream.acknowledge(later)
            laboratory.write(update(keys[2], f"snapshot {number}"))
            for adapter in now_and_then(laboratory, upstream, later):
                upstream, pin = adapter, pinned(adapter, later)
            for commit in commits(upstream, later, pin.epoch):
                rows = applied(rows, commit)
            assert rows == dict(read(upstream, pin)) == laboratory.rows()
            if number == 1:
                open_one.commit()
            upstream.acknowledge(pin.epoch)
            epoch = pin.epoch
        assert followed(upstream, epoch) == epoch

    @pytest.mark.parametrize("most", [1, 4, 7])
    def test_a_backlog_is_cut_between_commits_into_bounded_parts(self, laboratory: Laboratory, most: int) -> None:
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        size = 3
        for at in range(0, 30, size):
            laboratory.write(*[insert(key) for key in laboratory.keys[at : at + size]])
        found: list[Commit] = []
        parts = 0
        while True:
            later = followed(upstream, epoch, most=most)
            if later == epoch:
                break
            part = commits(upstream, epoch, later)
            assert part == commits(reopened(laboratory, epoch), epoch, later)
            assert all(len(commit.writes) == size for commit in part), "a commit was cut"
            assert sum(len(commit.writes) for commit in part) < most + size
            upstream = reopened(laboratory, later)
            upstream.acknowledge(later)
            found, epoch, parts = found + part, later, parts + 1
            assert parts <= 40
        assert [write.key for commit in found for write in commit.writes] == list(laboratory.keys[:30])

    def test_a_backlog_is_worked_off_before_the_snapshot_goes_on(self, laboratory: Laboratory) -> None:
        fill(laboratory, 5)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        rows = laboratory.rows()
        for at in range(10, 30, 2):
            laboratory.write(insert(laboratory.keys[at]), insert(laboratory.keys[at + 1]))
        steps: list[Step] = []
        most = 5
        while not steps or steps[-1].pin is None:
            step = upstream.next_epoch(epoch, snapshot=True, max_changes=most, until=None)
            for commit in commits(upstream, epoch, step.epoch):
                rows = applied(rows, commit)
            assert upstream.reached(step.epoch, epoch.position)
            steps.append(step)
            epoch, most = step.epoch, 2 * most
            assert len(steps) < 20
        assert len(steps) > 1
        assert steps[-1].pin is not None
        assert dict(read(upstream, steps[-1].pin)) == rows == laboratory.rows()

    def test_while_the_snapshot_is_held_changes_are_read_and_it_can_go_on(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        first = pinned(upstream)
        rows = dict(read(upstream, first))
        assert held(upstream, first.epoch) == first.epoch
        epochs = [first.epoch]
        open_one = laboratory.hold(update(keys[0], "open"))
        for number in range(3):
            laboratory.write(update(keys[1], f"change {number}"), insert(keys[20 + number]))
        while (later := held(upstream, epochs[-1], most=2)) != epochs[-1]:
            assert upstream.reached(later, epochs[-1].position)
            epochs.append(later)
        assert len(epochs) == 4, "two changes at a time"
        open_one.commit()
        for adapter in now_and_then(laboratory, upstream, epochs[-1]):
            epochs.append(held(adapter, epochs[-1]))
            upstream = adapter
        assert epochs[-1] == epochs[-2]
        pin = pinned(upstream, epochs[-1])
        for one, two in pairwise([*epochs, pin.epoch]):
            for commit in commits(upstream, one, two):
                rows = applied(rows, commit)
        assert rows == dict(read(upstream, pin)) == laboratory.rows()

    def test_a_stream_may_begin_with_its_snapshot_held(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        step = upstream.held_epoch(None, max_changes=UNLIMITED)
        assert (step.epoch.number, step.pin) == (1, None)
        laboratory.write(update(laboratory.keys[0]))
        later = pinned(upstream, step.epoch)
        assert [commit.writes for commit in commits(upstream, step.epoch, later.epoch)] == [
            (update(laboratory.keys[0]),)
        ]

    def test_a_large_commit_is_not_cut(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        laboratory.write(*[insert(key) for key in laboratory.keys[:30]])
        for snapshot in (True, False):
            here = epoch
            found: list[Commit] = []
            for _ in range(10):
                step = upstream.next_epoch(here, snapshot=snapshot, max_changes=2, until=None)
                found += commits(upstream, here, step.epoch)
                here = step.epoch
            assert [len(commit.writes) for commit in found] == [30]

    def test_nothing_is_followed_beyond_a_moment(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        for number in range(4):
            laboratory.write(insert(keys[number]))
        until = upstream.present()
        for number in range(4, 8):
            laboratory.write(insert(keys[number]))
        found: list[KeyValue | None] = []
        for _ in range(20):
            reached = upstream.reached(epoch, until)
            later = followed(upstream, epoch, most=2, until=until)
            found += [write.key for commit in commits(upstream, epoch, later) for write in commit.writes]
            if later == epoch:
                break
            assert not reached, "there is nothing left to follow"
            epoch = later
        assert found == list(keys[:4])
        assert upstream.reached(epoch, until)

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def test_what_was_not_acknowledged_can_be_had(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        for number in range(4):
            laboratory.write(update(laboratory.keys[number]))
            laboratory.write(delete(laboratory.keys[20 + number]))
            epochs.append(pinned(upstream, epochs[-1]).epoch)
            # What a batch ends with is acknowledged when the next one is asked for.
            commits(upstream, epochs[-2], epochs[-1])
            upstream.acknowledge(epochs[-2])
            upstream.acknowledge(epochs[-2])
        for adapter in now_and_then(laboratory, upstream, epochs[-2]):
            assert [len(commit.writes) for commit in commits(adapter, epochs[-2], epochs[-1])] == [1, 1]

    def test_acknowledging_keeps_a_transaction_that_was_open_meanwhile(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        held = laboratory.hold(update(keys[0], "held"))
        for number in range(1, 4):
            laboratory.write(update(keys[number]))
            later = pinned(upstream, epoch).epoch
            assert len(commits(upstream, epoch, later)) == 1
            upstream.acknowledge(later)
            epoch = later
        held.commit()
        upstream = reopened(laboratory, epoch)
        (commit,) = commits(upstream, epoch, pinned(upstream, epoch).epoch)
        assert commit.writes == (update(keys[0], "held"),)

    def test_acknowledging_while_following_keeps_a_transaction_that_was_open_meanwhile(
        self, laboratory: Laboratory
    ) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        held = laboratory.hold(update(keys[0], "held"))
        for number in range(1, 4):
            laboratory.write(update(keys[number]))
            later = followed(upstream, epoch)
            assert len(commits(upstream, epoch, later)) == 1
            upstream.acknowledge(later)
            epoch = later
        held.commit()
        upstream = reopened(laboratory, epoch)
        (commit,) = commits(upstream, epoch, followed(upstream, epoch))
        assert commit.writes == (update(keys[0], "held"),)

    def test_acknowledging_an_older_state_again_takes_nothing_back(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        for number in range(3):
            laboratory.write(insert(laboratory.keys[number]))
            epochs.append(followed(upstream, epochs[-1]))
        for epoch in (epochs[2], epochs[0], epochs[1], epochs[2]):
            upstream.acknowledge(epoch)
        assert len(commits(reopened(laboratory, epochs[2]), epochs[2], epochs[3])) == 1

    # -- the changes between two positions, for a batch ----------------------------------------------------------------

    @pytest.mark.parametrize("seed", range(2))
    def test_the_changes_between_two_positions_lead_from_one_state_to_the_other(
        self, laboratory: Laboratory, seed: int
    ) -> None:
        random = Random(seed)
        fill(laboratory, 15)
        epoch = pinned(begun(laboratory)).epoch
        writer = Writer(random, laboratory)
        states = [(now(laboratory), laboratory.rows())]
        for _ in range(6):
            for _ in range(random.randrange(5)):
                writer.write()
            states.append((now(laboratory), laboratory.rows()))
        parts = []
        for (after, rows), (upto, expected) in pairwise(states):
            parts.append(spanned(laboratory, after, upto))
            assert led(rows, parts[-1]) == expected
        whole = span(laboratory, states[0][0], states[-1][0])
        writer.write()
        elsewhere: ChangeReader = pickle.loads(pickle.dumps(whole))  # noqa: S301 - our own bytes
        for reader in (whole, elsewhere, whole):
            found = commits_of(reader.read(), laboratory.open().schema())
            assert found == [commit for part in parts for commit in part]
        writer.finish()
        # Nothing was acknowledged: the stream, whose log it is, has it all before it.
        upstream = reopened(laboratory, epoch)
        assert led(states[0][1], commits(upstream, epoch, followed(upstream, epoch))) == laboratory.rows()

    def test_a_position_is_fixed_when_it_is_named(self, laboratory: Laboratory) -> None:
        begun(laboratory)
        laboratory.write(insert(laboratory.keys[0], "one"))
        reader = span(laboratory, EARLIEST, LATEST)
        laboratory.write(insert(laboratory.keys[1], "two"))
        schema = laboratory.open().schema()
        assert commits_of(reader.read(), schema)[-1].writes == (insert(laboratory.keys[0], "one"),)
        assert spanned(laboratory, reader.after, reader.upto) == commits_of(reader.read(), schema)
        assert [commit.writes for commit in spanned(laboratory, reader.upto)] == [(insert(laboratory.keys[1], "two"),)]
        assert spanned(laboratory, LATEST) == []

    def test_what_is_no_position_is_refused(self, laboratory: Laboratory) -> None:
        begun(laboratory)
        before = now(laboratory)
        laboratory.write(insert(laboratory.keys[0]))
        after = now(laboratory)
        for starting, ending in (("yesterday", LATEST), (EARLIEST, "-1"), ("", LATEST), (after, before)):
            with pytest.raises(OptionsError):
                span(laboratory, starting, ending)

    def test_changes_between_two_positions_that_are_lost_are_not_passed_over(self, laboratory: Laboratory) -> None:
        bookmark = begun(laboratory).bookmark(STREAM)
        before = now(laboratory)
        laboratory.write(insert(laboratory.keys[0]))
        reader = span(laboratory, before, LATEST)
        laboratory.lose_changes(bookmark)
        with pytest.raises(DataLossError):
            list(reader.read())

    # -- figures -----------------------------------------------------------------------------------------------------

    def test_figures_are_whole_numbers(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        pinned(upstream)
        assert all(type(figure) is int and figure >= 0 for figure in upstream.lag().values())

    def test_closing_may_be_done_again(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        pinned(upstream)
        upstream.close()
        upstream.close()

    # -- everything at once ------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("seed", range(4))
    def test_changes_lead_from_each_state_to_the_next_whatever_happens(self, laboratory: Laboratory, seed: int) -> None:
        random = Random(seed)
        fill(laboratory, 15)
        upstream = begun(laboratory)
        writer = Writer(random, laboratory)
        epoch = pinned(upstream).epoch
        pin = pinned(upstream, epoch)
        epoch, rows = pin.epoch, dict(read(upstream, pin))
        for _ in range(12):
            for _ in range(random.randrange(4)):
                writer.write()
            step = upstream.next_epoch(epoch, snapshot=True, max_changes=random.choice([3, UNLIMITED]), until=None)
            if random.random() < 0.3:
                upstream = reopened(laboratory, epoch)
                step = Step(step.epoch, None)
            for commit in commits(upstream, epoch, step.epoch):
                rows = applied(rows, commit)
            if step.pin is not None:
                assert dict(read(upstream, step.pin)) == rows
            epoch = step.epoch
            if random.random() < 0.5:
                upstream.acknowledge(epoch)
        writer.finish()
        for _ in range(100):
            later = followed(upstream, epoch, most=random.choice([2, UNLIMITED]))
            for commit in commits(upstream, epoch, later):
                rows = applied(rows, commit)
            if later == epoch:
                break
            epoch = later
            upstream.acknowledge(epoch)
        assert rows == laboratory.rows()


class Writer:
    """Random transactions on random rows, some of which stay open for a while."""

    def __init__(self, random: Random, laboratory: Laboratory) -> None:
        self._random = random
        self._laboratory = laboratory
        self._rows = laboratory.rows()
        self._held: list[tuple[Held, set[KeyValue], Rows]] = []

    def write(self) -> None:
        """One transaction; one that was held may end."""
        if self._held and self._random.random() < 0.5:
            self._end(self._random.randrange(len(self._held)))
        locked = {key for _, keys, _ in self._held for key in keys}
        writes, rows = self._writes(locked)
        if not writes:
            return
        if self._random.random() < 0.3 and len(self._held) < 3:
            keys = {key for write in writes for key in (write.old, write.key) if key is not None}
            after: Rows = {key: rows[key] for key in keys if key in rows}
            self._held.append((self._laboratory.hold(*writes), keys, after))
        else:
            self._laboratory.write(*writes)
            self._rows = rows

    def finish(self) -> None:
        while self._held:
            self._end(0)
        assert self._rows == self._laboratory.rows()

    def _end(self, at: int) -> None:
        held, keys, after = self._held.pop(at)
        if self._random.random() < 0.3:
            held.roll_back()
        else:
            held.commit()
            self._rows = {key: value for key, value in self._rows.items() if key not in keys} | after

    def _writes(self, locked: set[KeyValue]) -> tuple[list[Write], Rows]:
        rows = dict(self._rows)
        writes: list[Write] = []
        touched: set[KeyValue] = set(locked)
        for _ in range(self._random.randrange(1, 5)):
            write = self._one(rows, touched)
            if write is None:
                continue
            writes.append(write)
            touched |= {key for key in (write.old, write.key) if key is not None}
            if write.old is not None:
                del rows[write.old]
            if write.key is not None:
                rows[write.key] = write.value
        return writes, rows

    def _one(self, rows: Rows, touched: set[KeyValue]) -> Write | None:
        """A write to keys that this transaction and those that are open leave alone."""
        present = [key for key in rows if key not in touched]
        absent = [key for key in self._laboratory.keys if key not in rows and key not in touched]
        value = f"value {self._random.randrange(1000)}"
        kind = self._random.choice([insert, update, move, delete])
        if (kind is not delete and kind is not update and not absent) or (kind is not insert and not present):
            return None
        if kind is insert:
            return insert(self._random.choice(absent), value)
        if kind is move:
            return move(self._random.choice(present), self._random.choice(absent), value)
        if kind is delete:
            return delete(self._random.choice(present))
        return update(self._random.choice(present), value)


class ForgettingUpstreamLaws:
    """For an upstream that has a state only as long as it is pinned."""

    def test_a_state_that_was_released_is_gone(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        upstream.release(pin)
        upstream.release(pin)
        with pytest.raises(SnapshotGoneError):
            read(upstream, pin)

    def test_a_state_may_be_released_from_another_thread(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        thread = threading.Thread(target=upstream.release, args=[pin])
        thread.start()
        thread.join()
        with pytest.raises(SnapshotGoneError):
            read(upstream, pin)
        assert len(read(upstream, pinned(upstream, pin.epoch))) == 3

    def test_a_later_state_releases_the_one_before(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        later = pinned(upstream, pin.epoch)
        with pytest.raises(SnapshotGoneError):
            read(upstream, pin)
        upstream.release(pin)
        assert len(read(upstream, later)) == 3

    def test_a_state_taken_again_shows_what_the_epoch_shows_and_what_has_happened_since(
        self, laboratory: Laboratory
    ) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        laboratory.write(update(laboratory.keys[0]))
        upstream = reopened(laboratory, epoch)
        pin = upstream.repin(epoch)
        assert pin.epoch.number == epoch.number
        assert upstream.reached(pin.epoch, epoch.position)
        assert not upstream.reached(epoch, pin.epoch.position)
        expected = in_order(laboratory, laboratory.rows())
        laboratory.write(delete(laboratory.keys[1]))
        assert read(upstream, pin) == expected
        assert expected[0] == (laboratory.keys[0], "changed")

    def test_while_the_snapshot_is_held_no_state_is(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        first = pinned(upstream)
        held(upstream, first.epoch)
        with pytest.raises(SnapshotGoneError):
            read(upstream, first)


class HidingUpstreamLaws:
    """For an upstream where a commit may be in the log before readers see it."""

    def test_a_commit_that_is_logged_but_not_seen_belongs_to_the_state_that_shows_it(
        self, laboratory: HidingLaboratory
    ) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        unseen = laboratory.commit_unseen(update(keys[0], "unseen"))
        laboratory.write(update(keys[1], "seen"))
        pin = pinned(upstream, epochs[-1])
        epochs.append(pin.epoch)
        assert dict(read(upstream, pin))[keys[0]] != "unseen"
        assert [commit.writes for commit in commits(upstream, *epochs)] == [(update(keys[1], "seen"),)]
        upstream.acknowledge(pin.epoch)
        unseen.commit()
        pin = pinned(upstream, epochs[-1])
        assert dict(read(upstream, pin))[keys[0]] == "unseen"
        for adapter in now_and_then(laboratory, upstream, epochs[-1]):
            found = commits(adapter, epochs[-1], pin.epoch)
            assert [commit.writes for commit in found] == [(update(keys[0], "unseen"),)]

    def test_a_state_without_snapshot_rows_may_show_it_and_no_later_one_repeats_it(
        self, laboratory: HidingLaboratory
    ) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        rows = laboratory.rows()
        unseen = laboratory.commit_unseen(update(keys[0], "unseen"))
        laboratory.write(update(keys[1], "seen"))
        epochs = [epoch, followed(upstream, epoch)]
        unseen.commit()
        laboratory.write(update(keys[2], "later"))
        epochs.append(followed(upstream, epochs[-1]))
        for one, two in pairwise(epochs):
            for commit in commits(upstream, one, two):
                rows = applied(rows, commit)
        assert rows == laboratory.rows()
        found = [commit.version for one, two in pairwise(epochs) for commit in commits(upstream, one, two)]
        assert len(found) == len(set(found)) == 3

    @pytest.mark.parametrize("held_first", [False, True])
    def test_rows_are_not_read_before_they_show_what_the_log_has_shown(
        self, laboratory: HidingLaboratory, held_first: bool
    ) -> None:
        keys = laboratory.keys
        fill(laboratory, 3)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        unseen = laboratory.commit_unseen(update(keys[0], "unseen"))
        later = followed(upstream, epoch)
        assert [commit.writes for commit in commits(upstream, epoch, later)] == [(update(keys[0], "unseen"),)]
        upstream.acknowledge(later)
        for adapter in now_and_then(laboratory, upstream, later):
            upstream = adapter
            assert held(upstream, later) == later
            step = upstream.next_epoch(later, snapshot=True, max_changes=UNLIMITED, until=None)
            assert step == Step(later, None)
        unseen.commit()
        if held_first:
            laboratory.write(update(keys[1]))
            before, later = later, held(upstream, later)
            assert [commit.writes for commit in commits(upstream, before, later)] == [(update(keys[1]),)]
        pin = pinned(upstream, later)
        assert commits(upstream, later, pin.epoch) == []
        assert dict(read(upstream, pin)) == laboratory.rows()

    def test_a_commit_that_is_not_seen_waits_while_the_snapshot_is_held(self, laboratory: HidingLaboratory) -> None:
        """Else the snapshot that goes on, which does not see it either, would have to have its row."""
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        unseen = laboratory.commit_unseen(update(keys[0], "unseen"))
        laboratory.write(update(keys[1], "seen"))
        later = held(upstream, epoch)
        assert [commit.writes for commit in commits(upstream, epoch, later)] == [(update(keys[1], "seen"),)]
        upstream.acknowledge(later)
        assert held(upstream, later) == later
        assert dict(read(upstream, pinned(upstream, later)))[keys[0]] != "unseen"
        unseen.commit()
        last = held(upstream, later)
        assert [commit.writes for commit in commits(upstream, later, last)] == [(update(keys[0], "unseen"),)]

    def test_a_commit_that_is_logged_but_not_seen_is_once_in_two_spans_that_adjoin(
        self, laboratory: HidingLaboratory
    ) -> None:
        fill(laboratory, 10)
        begun(laboratory)
        rows, before = laboratory.rows(), now(laboratory)
        unseen = laboratory.commit_unseen(update(laboratory.keys[0], "unseen"))
        between = now(laboratory)
        unseen.commit()
        laboratory.write(update(laboratory.keys[1], "seen"))
        found = [*spanned(laboratory, before, between), *spanned(laboratory, between)]
        assert len(found) == 2
        assert led(rows, found) == laboratory.rows()
