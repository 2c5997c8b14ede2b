"""The pieces of a batch, and how readers share them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backfill.plan import Limits, Piece, Split, pieces, split
from backfill.progress import CompletedRun, Finished, Frontier
from backfill.vnode import WHOLE_TABLE, KeyRange, merged
from tests.core.numbered import Table, cuts, emitted, key, limits, numbers, start


@given(numbers, cuts, limits, limits)
def test_the_pieces_between_two_barriers_are_the_rows_that_came_in_between(
    rows: list[int], bounds: list[int], first: Limits, second: Limits
) -> None:
    table = Table(rows)
    before = table.plan(start(bounds), first)
    after = table.plan(before, second)
    found = pieces(before, after)
    assert [piece.row_count for piece in found] == [len(table.within(piece.range)) for piece in found]
    read = [number for piece in found for number in table.within(piece.range)]
    assert read == sorted(set(emitted(table, after)) - set(emitted(table, before)))


@given(numbers, cuts, limits)
def test_the_pieces_of_the_first_batch_follow_from_its_end_alone(
    rows: list[int], bounds: list[int], limits: Limits
) -> None:
    table = Table(rows)
    end = table.plan(start(bounds), limits)
    alone, known = pieces(None, end), pieces(start(bounds), end)
    assert merged(piece.range for piece in alone) == merged(piece.range for piece in known)
    assert sum(piece.row_count for piece in alone) == sum(piece.row_count for piece in known)


def test_the_rows_of_added_vnodes_are_distinguished_from_those_they_were_folded_with() -> None:
    begin = Frontier((CompletedRun(0, KeyRange(None, key(9)), (3, 2)),))
    end = Frontier((CompletedRun(0, KeyRange(None, key(29)), (3, 2, 4, 5)),))
    assert pieces(begin, end) == (Piece(KeyRange(key(9), key(29)), 9),)


def test_added_vnodes_begin_where_they_say_and_not_where_the_others_end() -> None:
    there = CompletedRun(0, KeyRange(None, key(9)), (3,))
    end = Frontier((there, CompletedRun(1, KeyRange(key(19), key(29)), (4,))))
    assert pieces(Frontier((there,)), end) == (Piece(KeyRange(key(19), key(29)), 4),)


@given(numbers, cuts, limits)
def test_nothing_is_read_where_nothing_moved(rows: list[int], bounds: list[int], limits: Limits) -> None:
    frontier = Table(rows).plan(start(bounds), limits)
    assert pieces(frontier, frontier) == ()
    assert pieces(Finished(1, 1), Finished(1, 1)) == ()
    assert pieces(None, Finished(0, 0)) == ()


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Piece, ...]:
    """Draws pieces in key order, some of which touch and some of which have no rows."""
    found, at = [], 0
    for rows in draw(st.lists(st.integers(0, 50), max_size=12)):
        begin = at + draw(st.integers(0, 1))
        at = begin + 1 + draw(st.integers(0, 1))
        found.append(Piece(KeyRange(key(begin), key(at)), rows))
    return tuple(found)


@given(neighbours(), st.integers(1, 6), st.integers(0, 60))
def test_splits_are_the_pieces_in_order_none_empty_and_not_more_than_readers(
    parts: tuple[Piece, ...], count: int, min_rows: int
) -> None:
    splits = split(parts, count=count, min_rows=min_rows)
    assert len(splits) <= count
    assert sum(item.row_count for item in splits) == sum(piece.row_count for piece in parts)
    assert all(item.row_count and item.ranges == merged(item.ranges) for item in splits)
    if splits:
        read = merged(span for item in splits for span in item.ranges)
        assert read == merged(piece.range for piece in parts)


@given(neighbours(), st.integers(1, 6))
def test_splits_are_balanced_up_to_one_piece(parts: tuple[Piece, ...], count: int) -> None:
    splits = split(parts, count=count, min_rows=1)
    total, largest = sum(piece.row_count for piece in parts), max((piece.row_count for piece in parts), default=0)
    assert all(item.row_count < total / min(count, max(1, total)) + largest for item in splits)


@given(neighbours(), st.integers(1, 6), st.integers(1, 60))
def test_a_further_reader_comes_only_where_each_has_enough_to_do(
    parts: tuple[Piece, ...], count: int, min_rows: int
) -> None:
    splits = split(parts, count=count, min_rows=min_rows)
    assert len(splits) <= max(1, sum(piece.row_count for piece in parts) // min_rows)


def test_equal_pieces_are_shared_equally() -> None:
    parts = [Piece(KeyRange(key(at), key(at + 1)), 10) for at in range(12)]
    splits = split(parts, count=4, min_rows=1)
    assert splits == tuple(Split((KeyRange(key(3 * at), key(3 * at + 3)),), 30) for at in range(4))


def test_pieces_without_rows_go_along_with_those_that_have_some() -> None:
    parts = [Piece(KeyRange(key(at), key(at + 1)), rows) for at, rows in enumerate([0, 5, 0, 5, 0])]
    assert split(parts, count=2, min_rows=1) == (
        Split((KeyRange(key(0), key(3)),), 5),
        Split((KeyRange(key(3), key(5)),), 5),
    )


def test_where_there_are_no_rows_nobody_reads() -> None:
    assert split([Piece(WHOLE_TABLE, 0)], count=4, min_rows=1) == ()
    assert split([], count=4, min_rows=1) == ()
