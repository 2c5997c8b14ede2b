"""Which transactions a state of PostgreSQL shows, against looking at one transaction at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backfill.errors import OffsetError
from backfill.upstream.postgres.position import Lsn, Position, Snapshot, end_of_last_record, format_lsn, parse_lsn

WRAP = 1 << 32
HALF = 1 << 31


far = st.sampled_from([10, WRAP - 3, WRAP + 5, 7 * WRAP, 7 * WRAP + HALF])
near = st.integers(10, 18)


@st.composite
def snapshots(draw: st.DrawFn, around: st.SearchStrategy[int] = far) -> Snapshot:
    """Draws snapshots as PostgreSQL makes them: `xmin` is the first that runs, and the last below `xmax` has ended."""
    xmax = draw(around)
    running = draw(st.sets(st.integers(max(3, xmax - 8), max(3, xmax - 2)), max_size=4))
    xids = tuple(sorted(xid for xid in running if xid < xmax - 1))
    return Snapshot(xids[0] if xids else xmax, xmax, xids)


lsns = st.integers(0, 20).map(Lsn)
positions = st.builds(Position, lsns, st.none() | snapshots(near))


def sees(snapshot: Snapshot, xid: int) -> bool:
    return xid < snapshot.xmax and xid not in snapshot.running


def shows(position: Position, xid: int, lsn: int) -> bool:
    return lsn < position.lsn and (position.snapshot is None or sees(position.snapshot, xid))


@given(snapshots(), st.lists(st.integers(-HALF, HALF - 1) | st.integers(-20, 20), min_size=1, max_size=20))
def test_a_snapshot_sees_32_bit_ids_as_the_64_bit_ids_they_stand_for(snapshot: Snapshot, away: list[int]) -> None:
    xids = [snapshot.xmax + distance for distance in away]
    logged = np.array([xid % WRAP for xid in xids], np.uint32)
    assert snapshot.sees(logged).tolist() == [sees(snapshot, xid) for xid in xids]


def test_an_id_after_the_wrap_around_is_not_taken_for_an_old_one() -> None:
    snapshot = Snapshot(WRAP - 2, WRAP + 2, (WRAP - 2, WRAP))
    logged = np.array([WRAP - 3, WRAP - 2, WRAP - 1, 0, 1, 2, 3], np.uint32)
    assert snapshot.sees(logged).tolist() == [True, False, True, False, True, False, False]


def test_no_ids_are_seen_without_complaint() -> None:
    assert Snapshot(5, 5, ()).sees(np.array([], np.uint32)).tolist() == []


@given(snapshots(near), snapshots(near))
def test_a_snapshot_sees_all_of_another_exactly_if_it_sees_each_transaction_of_it(one: Snapshot, two: Snapshot) -> None:
    expected = all(sees(one, xid) for xid in range(30) if sees(two, xid))
    assert one.sees_all_of(two) == expected


@given(snapshots(near), snapshots(near), snapshots(near))
def test_seeing_all_of_is_an_order(one: Snapshot, two: Snapshot, three: Snapshot) -> None:
    assert one.sees_all_of(one)
    if one.sees_all_of(two) and two.sees_all_of(three):
        assert one.sees_all_of(three)


@given(positions, st.lists(st.tuples(st.integers(3, 20), st.integers(0, 20)), max_size=20))
def test_a_position_shows_what_was_committed_before_its_lsn_and_is_seen(
    position: Position, transactions: list[tuple[int, int]]
) -> None:
    found = position.shows(
        np.array([xid for xid, _ in transactions], np.uint32), np.array([lsn for _, lsn in transactions], np.uint64)
    )
    assert found.tolist() == [shows(position, xid, lsn) for xid, lsn in transactions]


@given(positions, positions)
@example(Position(Lsn(7)), Position(Lsn(7), Snapshot(10, 10, ())))
def test_a_position_that_shows_all_of_another_shows_each_transaction_of_it(one: Position, two: Position) -> None:
    if one.shows_all_of(two):
        for xid in range(3, 25):
            for lsn in range(22):
                assert shows(one, xid, lsn) or not shows(two, xid, lsn)


@given(lsns, lsns, snapshots(near), snapshots(near))
def test_of_two_states_with_snapshots_one_shows_all_of_the_other_if_both_parts_say_so(
    one: Lsn, two: Lsn, first: Snapshot, second: Snapshot
) -> None:
    found = Position(one, first).shows_all_of(Position(two, second))
    assert found == (one >= two and first.sees_all_of(second))


@given(lsns, snapshots(near), lsns)
def test_once_visibility_does_not_matter_the_lsn_decides(lsn: Lsn, snapshot: Snapshot, later: Lsn) -> None:
    assert Position(later).shows_all_of(Position(lsn, snapshot)) == (later >= lsn)
    assert not Position(later, snapshot).shows_all_of(Position(lsn))


@given(st.integers(0, 2**64 - 1).map(Lsn), st.none() | snapshots())
def test_a_position_comes_back_from_its_text_and_has_one_text(lsn: Lsn, snapshot: Snapshot | None) -> None:
    position = Position(lsn, snapshot)
    assert Position.parse(str(position)) == position
    assert str(Position.parse(str(position))) == str(position)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("16/B374D848", Position(Lsn(0x16B374D848))),
        ("16/B374D848 16/B374D000", Position(Lsn(0x16B374D848), unseen=Lsn(0x16B374D000))),
        ("0/0", Position(Lsn(0))),
        ("FFFFFFFF/FFFFFFFF", Position(Lsn(2**64 - 1))),
        ("16/B374D848 740:745:741,743", Position(Lsn(0x16B374D848), Snapshot(740, 745, (741, 743)))),
        ("0/1 8589934592:8589934592:", Position(Lsn(1), Snapshot(1 << 33, 1 << 33, ()))),
        ("0/1 740:745:741,743 2", Position(Lsn(1), Snapshot(740, 745, (741, 743)), timeline="2")),
    ],
)
def test_positions_are_written_as_postgresql_writes_them(text: str, position: Position) -> None:
    assert Position.parse(text) == position
    assert str(position) == text


@pytest.mark.parametrize(
    "text", ["", "junk", "0/ZZ", "0/1 junk", "0/1 740:745", "12@04b4e8ed-1c54-40ed-9e27-bcb4185234e5"]
)
def test_a_text_that_is_no_position_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(OffsetError, match=r"is not one of PostgreSQL: .* fresh checkpointLocation"):
        Position.parse(text)


@given(st.integers(0, 2**64 - 1).map(Lsn))
def test_an_lsn_comes_back_from_its_text(lsn: Lsn) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


@pytest.mark.parametrize(
    ("insert_lsn", "end"),
    [
        ("0/F8A6018", "0/F8A6000"),  # after the header of a page
        ("0/F000028", "0/F000000"),  # after the header of a segment
        ("0/F8A6028", "0/F8A6028"),
        ("0/F8A6000", "0/F8A6000"),
        ("0/F8A6020", "0/F8A6020"),
        ("0/F8A5018", "0/F8A5018"),
    ],
)
def test_the_last_record_ends_before_the_head_of_the_page_after_it(insert_lsn: str, end: str) -> None:
    assert format_lsn(end_of_last_record(parse_lsn(insert_lsn))) == end
