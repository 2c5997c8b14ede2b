"""The simulator keeps the laws of an upstream, so that what is proven with it holds for others that do."""

from __future__ import annotations

import pytest

from tests.contract.laws import ForgettingUpstreamLaws, HidingUpstreamLaws, UpstreamLaws
from tests.contract.simulated import SimulatedLaboratory
from tests.simulator.database import Database
from tests.simulator.upstream import Server


@pytest.fixture(params=[False, True], ids=["identity of the key", "full identity"])
def laboratory(request: pytest.FixtureRequest) -> SimulatedLaboratory:
    return SimulatedLaboratory(Server(Database(), full_identity=request.param, batch_rows=4))


class TestSimulatedUpstream(UpstreamLaws, ForgettingUpstreamLaws, HidingUpstreamLaws):
    pass
