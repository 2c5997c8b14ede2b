"""Laws of going from one state to the next, with a snapshot and without."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from backfill.epoch import Epoch
from backfill.upstream import Step
from tests.contract.laboratory import Commit, KeyValue, Laboratory, applied, insert, update
from tests.contract.laws.moves import (
    UNLIMITED,
    begun,
    commits,
    fill,
    followed,
    held,
    now_and_then,
    pinned,
    read,
    reopened,
)


class FollowingLaws:
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

    @pytest.mark.parametrize("most", [1, 4, 7, 11, 15, 16])
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

    def test_a_backlog_is_acknowledged_part_by_part(self, laboratory: Laboratory) -> None:
        """The process that reads the backlog acknowledges it, and may still hold what it found beyond a part."""
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        for at in range(0, 30, 3):
            laboratory.write(*[insert(key) for key in laboratory.keys[at : at + 3]])
        found: list[Commit] = []
        while True:
            step = upstream.snapshot_epoch(epoch, max_changes=4)
            found += commits(upstream, epoch, step.epoch)
            upstream.acknowledge(step.epoch)
            epoch = step.epoch
            if step.pin is not None:
                break
            assert len(found) <= 10
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
            step = upstream.snapshot_epoch(epoch, max_changes=most)
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
        # A step may have no commit: PostgreSQL 14 also tells of transactions that did nothing to this table.
        steps = [len(commits(upstream, *ends)) for ends in pairwise(epochs)]
        assert [step for step in steps if step] == [1, 1, 1], "two changes at a time"
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
        ways: list[Callable[[Epoch], Step]] = [
            lambda after: upstream.snapshot_epoch(after, max_changes=2),
            lambda after: upstream.log_epoch(after, max_changes=2, until=None),
        ]
        for next_step in ways:
            here = epoch
            found: list[Commit] = []
            for _ in range(10):
                step = next_step(here)
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

    @pytest.mark.parametrize("restarts", [False, True])
    def test_a_state_is_taken_again_after_one_of_the_log_alone(self, laboratory: Laboratory, restarts: bool) -> None:
        """A transaction that is open at the epoch before does not keep a state from being taken again."""
        keys = laboratory.keys
        fill(laboratory, 3)
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        held = laboratory.hold(update(keys[0], "held"))
        laboratory.write(update(keys[1], "one"))
        epoch = followed(upstream, epoch)
        held.commit()
        laboratory.write(update(keys[2], "two"))
        epoch = followed(upstream, epoch)
        if restarts:
            upstream = reopened(laboratory, epoch)
        pin = upstream.repin(epoch)
        assert pin.epoch.number == epoch.number
        assert dict(read(upstream, pin)) == laboratory.rows()
        upstream.release(pin)
