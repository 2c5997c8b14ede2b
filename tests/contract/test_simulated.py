"""The simulator keeps the laws of an upstream, so what is proven with it holds for every upstream that keeps them."""

from __future__ import annotations

import pytest

from tests.contract.laboratory import insert
from tests.contract.laws import ForgettingUpstreamLaws, HidingUpstreamLaws, UpstreamLaws
from tests.contract.laws.moves import begun, followed, pinned, read
from tests.contract.simulated import SimulatedLaboratory
from tests.simulator.database import Database
from tests.simulator.upstream import Server


@pytest.fixture(params=[False, True], ids=["identity of the key", "full identity"])
def laboratory(request: pytest.FixtureRequest) -> SimulatedLaboratory:
    return SimulatedLaboratory(Server(Database(), full_identity=request.param, batch_rows=4))


class TestSimulatedUpstream(UpstreamLaws, ForgettingUpstreamLaws, HidingUpstreamLaws):
    def test_a_state_that_is_taken_again_shows_what_was_passed_on_before_readers_saw_it(
        self, laboratory: SimulatedLaboratory
    ) -> None:
        """The simulator makes readers see the commit at once, where a real adapter waits until they do."""
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        laboratory.commit_unseen(insert(laboratory.keys[0], "unseen"))
        epoch = followed(upstream, epoch)
        pin = upstream.repin(epoch)
        assert upstream.reached(pin.epoch, epoch.position)
        assert read(upstream, pin) == [(laboratory.keys[0], "unseen")]
