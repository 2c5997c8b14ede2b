"""Laws of snapshot rows of a pinned state, which are read and counted."""

from __future__ import annotations

import pickle

import pytest

from backfill.plan import Measure
from backfill.vnode import WHOLE_TABLE, Key, KeyRange, ranges_between
from tests.contract.laboratory import (
    KeyValue,
    Laboratory,
    applied,
    delete,
    insert,
    key_batch,
    keys_of,
    move,
    rows_of,
    update,
)
from tests.contract.laws.moves import UNLIMITED, begun, commits, fill, in_order, key_text, pinned, read, reopened


class SnapshotLaws:
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
        third, ninth = key_text(upstream, pin, 3), key_text(upstream, pin, 9)
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
        texts = [key_text(upstream, pin, place) for place in (4, 9, 20)]
        ranges = (KeyRange(None, texts[0]), KeyRange(texts[1], texts[2]))
        assert [key for key, _ in read(upstream, pin, ranges)] == [
            laboratory.keys[at] for at in (*range(5), *range(10, 21))
        ]
        assert read(upstream, pin, ()) == []

    def test_a_position_outlives_its_row(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        text = key_text(upstream, pin, 10)
        laboratory.write(delete(laboratory.keys[10]))
        pin = pinned(upstream, pin.epoch)
        assert [key for key, _ in read(upstream, pin, [KeyRange(text, None)])] == list(laboratory.keys[11:40])
        assert [key for key, _ in read(upstream, pin, [KeyRange(None, text)])] == list(laboratory.keys[:10])

    def test_several_readers_read_one_state_from_where_they_were_sent(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        ranges = ranges_between([key_text(upstream, pin, place) for place in (9, 19)])
        sent = pickle.dumps(upstream.reader())
        readers = [pickle.loads(sent).read(pin.token, [item]) for item in ranges]  # noqa: S301 - our own bytes
        laboratory.write(delete(laboratory.keys[0]), delete(laboratory.keys[15]), delete(laboratory.keys[30]))
        found: list[KeyValue] = []
        for reader in readers:
            found += [key for key, _ in rows_of(reader, upstream.schema())]
        assert found == list(laboratory.keys[:40])

    def test_without_a_token_each_reading_is_of_the_state_of_its_own_moment(self, laboratory: Laboratory) -> None:
        """This needs no place in the log, and holds after the upstream that gave the reader is closed."""
        fill(laboratory)
        upstream = laboratory.open()
        reader, ranges, schema = upstream.reader(), ranges_between(upstream.bounds(4)), upstream.schema()
        upstream.close()
        for key in laboratory.keys[10:12]:
            laboratory.write(delete(key))
            assert sorted(rows_of(reader.scan(ranges), schema)) == sorted(laboratory.rows().items())

    def test_without_a_token_all_ranges_of_one_reading_are_of_one_state(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = laboratory.open()
        first, *others = ranges_between(upstream.bounds(4))
        before = sorted(laboratory.rows().items())
        reading = iter(upstream.reader().scan([first, *others]))
        begun = next(reading)
        laboratory.write(delete(laboratory.keys[39]), move(laboratory.keys[38], laboratory.keys[40]))
        assert sorted(rows_of([begun, *reading], upstream.schema())) == before

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

    def test_a_state_released_more_than_once_takes_no_later_one_with_it(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        upstream.release(pin)
        upstream.release(pin)
        later = pinned(upstream, pin.epoch)
        upstream.release(pin)
        assert [key for key, _ in read(upstream, later)] == list(laboratory.keys[:40])

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

    @pytest.mark.parametrize("limit", [1, 39, 40, UNLIMITED])
    def test_measuring_finds_exactly_so_many_rows_and_the_key_of_the_last(
        self, laboratory: Laboratory, limit: int
    ) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        (extent,) = upstream.measure(pin, [Measure(WHOLE_TABLE, limit)])
        if limit < 40:
            assert extent.row_count == limit
            assert extent.last is not None
            assert keys_of(upstream.typed([extent.last])) == [laboratory.keys[limit - 1]]
            assert upstream.measure(pin, [Measure(WHOLE_TABLE, limit, known_more=True)]) == (extent,)
        else:
            assert (extent.row_count, extent.last) == (40, None)

    def test_measuring_is_of_the_pinned_state(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        laboratory.write(*[delete(key) for key in laboratory.keys[:20]])
        assert [extent.row_count for extent in upstream.measure(pin, [Measure(WHOLE_TABLE, 100)])] == [40]
        pin = pinned(upstream, pin.epoch)
        assert [extent.row_count for extent in upstream.measure(pin, [Measure(WHOLE_TABLE, 100)])] == [20]

    @pytest.mark.parametrize("step", [1, 7])
    def test_measuring_on_from_the_last_key_passes_every_row_once(self, laboratory: Laboratory, step: int) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        found: list[KeyValue] = []
        after: Key | None = None
        for _ in range(41):
            (extent,) = upstream.measure(pin, [Measure(KeyRange(after, None), step)])
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
        pin = pinned(upstream)
        ranges = ranges_between([key_text(upstream, pin, place) for place in (0, 9, 19, 38)])
        extents = upstream.measure(pin, [Measure(item, 5) for item in ranges])
        assert [extent.row_count for extent in extents] == [1, 5, 5, 5, 1]
        assert [extent.last is None for extent in extents] == [True, False, False, False, True]
        known = [
            Measure(item, 5, known_more=extent.last is not None) for item, extent in zip(ranges, extents, strict=True)
        ]
        assert upstream.measure(pin, known) == extents
        assert upstream.measure(pin, []) == ()
