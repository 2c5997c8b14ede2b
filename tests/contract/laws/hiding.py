"""Laws of an upstream whose log may be ahead of what readers see."""

from __future__ import annotations

from itertools import pairwise

import pytest

from backfill.upstream import Step
from tests.contract.laboratory import HidingLaboratory, applied, update
from tests.contract.laws.moves import (
    UNLIMITED,
    begun,
    commits,
    fill,
    followed,
    held,
    led,
    now,
    now_and_then,
    pinned,
    read,
    spanned,
)


class HidingUpstreamLaws:
    """Laws of an upstream where a commit may be in the log before readers see it."""

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

    def test_no_epoch_is_complete_up_to_an_earlier_moment_than_the_one_before(
        self, laboratory: HidingLaboratory
    ) -> None:
        fill(laboratory, 10)
        upstream = begun(laboratory)
        unseen = laboratory.commit_unseen(update(laboratory.keys[0], "unseen"))
        epoch = pinned(upstream).epoch
        unseen.commit()
        later = followed(upstream, epoch)
        assert len(commits(upstream, epoch, later)) == 1
        assert later.timestamp >= epoch.timestamp

    def test_a_stream_of_later_changes_alone_reads_no_rows_before_they_show_what_was_logged_at_its_beginning(
        self, laboratory: HidingLaboratory
    ) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        unseen = laboratory.commit_unseen(update(laboratory.keys[0], "unseen"))
        epoch = upstream.log_epoch(None, max_changes=UNLIMITED, until=None).epoch
        upstream.acknowledge(epoch)
        assert upstream.snapshot_epoch(epoch, max_changes=UNLIMITED).pin is None
        unseen.commit()
        assert dict(read(upstream, pinned(upstream, epoch)))[laboratory.keys[0]] == "unseen"

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
            step = upstream.snapshot_epoch(later, max_changes=UNLIMITED)
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
        """If it were passed on, the snapshot that goes on next would lack its row, since readers do not see it yet."""
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
