"""Laws of the bounds that cut the table, and of which range a key belongs to."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from backfill.errors import KeyTextError
from backfill.plan import Measure
from backfill.vnode import WHOLE_TABLE, KeyRange, merged, ranges_between
from tests.contract.laboratory import Laboratory, delete, insert, key_batch, keys_of
from tests.contract.laws.moves import begun, fill, in_order, key_text, pinned, read


class BoundsLaws:
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
        pin = pinned(upstream)
        counts = [extent.row_count for extent in upstream.measure(pin, [Measure(item, 100) for item in ranges])]
        assert sum(counts) == 40
        assert max(counts) <= 16

    def test_a_part_of_the_table_is_the_rows_between_two_keys_and_is_cut_within(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        texts = [key_text(upstream, pin, place) for place in range(39)]
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
        pin = pinned(upstream)
        with pytest.raises(KeyTextError, match="the table's key"):
            upstream.range_of(None, (*key_text(upstream, pin, 3), "1"))

    def test_an_empty_table_can_be_cut_and_read(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        ranges = ranges_between(upstream.bounds(8))
        pin = pinned(upstream)
        extents = upstream.measure(pin, [Measure(item, 5) for item in ranges])
        assert [extent.row_count for extent in extents] == [0] * len(ranges)
        assert read(upstream, pin, merged(ranges)) == []

    def test_typed_keys_have_the_types_and_names_of_the_key_and_their_order(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        places = [20, 0, 38, 7, 0]
        found = upstream.typed([key_text(upstream, pin, place) for place in places])
        assert found.schema.equals(upstream.schema().key_schema)
        assert keys_of(found) == [laboratory.keys[place] for place in places]
        assert upstream.typed([]).num_rows == 0
        assert upstream.typed([]).schema.equals(upstream.schema().key_schema)

    def test_a_key_is_covered_exactly_if_a_row_with_it_would_be_read(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        texts = [key_text(upstream, pin, place) for place in (4, 12, 20, 37)]
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
        pin = pinned(upstream)
        seventh = key_text(upstream, pin, 7)
        found = upstream.covered(key_batch(upstream, laboratory.keys[:40]), (KeyRange(None, seventh),))
        assert found.to_pylist() == [place <= 14 for place in range(40)]

    def test_no_keys_are_placed_without_complaint(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        coverage = (KeyRange(None, key_text(upstream, pin, 1)),)
        assert upstream.covered(key_batch(upstream, []), coverage).to_pylist() == []
