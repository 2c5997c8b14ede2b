"""Laws of an upstream that has a state only as long as it is pinned."""

from __future__ import annotations

import threading

import pytest

from backfill.errors import SnapshotGoneError
from backfill.plan import Measure
from backfill.vnode import WHOLE_TABLE
from tests.contract.laboratory import Laboratory, delete, update
from tests.contract.laws.moves import begun, fill, held, in_order, pinned, read, reopened


class ForgettingUpstreamLaws:
    """Laws of an upstream that has a state only as long as it is pinned."""

    def test_a_state_that_was_released_is_gone(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        upstream.release(pin)
        upstream.release(pin)
        with pytest.raises(SnapshotGoneError):
            read(upstream, pin)
        with pytest.raises(SnapshotGoneError):
            upstream.measure(pin, [Measure(WHOLE_TABLE, 9)])

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
        with pytest.raises(SnapshotGoneError):
            upstream.measure(pin, [Measure(WHOLE_TABLE, 9)])
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

    def test_a_state_taken_again_releases_the_one_before(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        pin = pinned(upstream)
        again = upstream.repin(pin.epoch)
        with pytest.raises(SnapshotGoneError):
            read(upstream, pin)
        once_more = upstream.repin(pin.epoch)
        with pytest.raises(SnapshotGoneError):
            read(upstream, again)
        assert len(read(upstream, once_more)) == 3

    def test_while_the_snapshot_is_held_no_state_is(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        first = pinned(upstream)
        held(upstream, first.epoch)
        with pytest.raises(SnapshotGoneError):
            read(upstream, first)
