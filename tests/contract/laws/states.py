"""Laws of the order of states, one later than the other."""

from __future__ import annotations

from itertools import pairwise

from tests.contract.laboratory import Laboratory, insert, update
from tests.contract.laws.moves import UNLIMITED, begun, commits, fill, followed, pinned


class StateLaws:
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
        step = upstream.log_epoch(None, max_changes=UNLIMITED, until=None)
        assert (step.epoch.number, step.pin) == (1, None)
        laboratory.write(update(laboratory.keys[0]))
        later = followed(upstream, step.epoch)
        assert [commit.writes for commit in commits(upstream, step.epoch, later)] == [(update(laboratory.keys[0]),)]

    def test_a_later_state_shows_everything_that_an_earlier_one_shows(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        for number in range(4):
            laboratory.write(insert(laboratory.keys[number]))
            step = upstream.snapshot_epoch(epochs[-1], max_changes=1 + number % 2)
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
