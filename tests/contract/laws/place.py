"""Laws of the place in the log: how it is made, found again, acknowledged and let go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backfill.epoch import Epoch
from backfill.errors import DataLossError, DefiniteError
from backfill.upstream import Upstream
from backfill.upstream.lag import UNKNOWN
from tests.contract.laboratory import Laboratory, Write, delete, insert, update
from tests.contract.laws.moves import STREAM, begun, commits, fill, followed, now_and_then, pinned, reopened


class PlaceLaws:
    def test_a_stream_has_one_bookmark_and_two_streams_have_two(self, laboratory: Laboratory) -> None:
        bookmark = laboratory.open().bookmark(STREAM)
        assert laboratory.open().bookmark(STREAM) == bookmark
        assert laboratory.open().bookmark("other001") != bookmark

    def test_a_place_is_that_of_the_stream_it_is_named_after(self, laboratory: Laboratory) -> None:
        upstream = laboratory.open()
        bookmark = upstream.bookmark(STREAM)
        assert upstream.is_own(bookmark, STREAM)
        assert not upstream.is_own(bookmark, "other001")

    def test_a_bookmark_stays_as_it_is_while_keys_keep_their_order(self, laboratory: Laboratory) -> None:
        bookmark = (*laboratory.open().bookmark(STREAM), ("another", "name"))
        laboratory.open().require_same_order(bookmark)
        laboratory.open().require_same_key(bookmark)
        assert laboratory.open().reordered(bookmark) == bookmark

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
        bookmark = upstream.bookmark(STREAM)
        found = upstream.attach(bookmark, epoch)
        assert set(bookmark) <= set(found)
        assert upstream.attach(found, epoch) == found
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

    def test_a_lag_is_reported_only_for_a_stream_whose_log_is_kept(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        bookmark, epoch = upstream.bookmark(STREAM), pinned(upstream).epoch
        laboratory.write(insert(laboratory.keys[0]))
        assert laboratory.open().lag_of(bookmark, epoch) != UNKNOWN
        laboratory.lose_changes(bookmark)
        with pytest.raises(DefiniteError):
            laboratory.open().lag_of(bookmark, epoch)

    def test_letting_go_of_the_place_may_be_done_again_and_then_it_may_be_made_again(
        self, laboratory: Laboratory
    ) -> None:
        upstream = begun(laboratory)
        bookmark = upstream.bookmark(STREAM)
        upstream.detach(bookmark)
        gone = upstream.detach(bookmark)
        assert laboratory.open().detach(bookmark) == gone
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        laboratory.write(insert(laboratory.keys[0]))
        assert len(commits(upstream, epoch, pinned(upstream, epoch).epoch)) == 1

    def test_what_was_not_acknowledged_can_be_had(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        for number in range(4):
            laboratory.write(update(laboratory.keys[number]))
            laboratory.write(delete(laboratory.keys[20 + number]))
            epochs.append(pinned(upstream, epochs[-1]).epoch)
            # The end of a batch is acknowledged when the next batch is asked for.
            commits(upstream, epochs[-2], epochs[-1])
            upstream.acknowledge(epochs[-2])
            upstream.acknowledge(epochs[-2])
        for adapter in now_and_then(laboratory, upstream, epochs[-2]):
            assert [len(commit.writes) for commit in commits(adapter, epochs[-2], epochs[-1])] == [1, 1]

    @pytest.mark.parametrize(
        "moved", [lambda upstream, after: pinned(upstream, after).epoch, followed], ids=["reading", "following"]
    )
    def test_acknowledging_keeps_a_transaction_that_was_open_meanwhile(
        self, laboratory: Laboratory, moved: Callable[[Upstream, Epoch], Epoch]
    ) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        held = laboratory.hold(update(keys[0], "held"))
        for number in range(1, 4):
            laboratory.write(update(keys[number]))
            later = moved(upstream, epoch)
            assert len(commits(upstream, epoch, later)) == 1
            upstream.acknowledge(later)
            epoch = later
        held.commit()
        upstream = reopened(laboratory, epoch)
        (commit,) = commits(upstream, epoch, moved(upstream, epoch))
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
