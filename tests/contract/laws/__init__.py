"""The laws of the `Upstream` contract. See `tests.contract.laboratory` for how to hold a new adapter to them."""

from __future__ import annotations

from tests.contract.laws.bounds import BoundsLaws
from tests.contract.laws.changes import ChangeLaws
from tests.contract.laws.following import FollowingLaws
from tests.contract.laws.forgetting import ForgettingUpstreamLaws
from tests.contract.laws.growing import GrowingUpstreamLaws
from tests.contract.laws.hiding import HidingUpstreamLaws
from tests.contract.laws.losing import LosingUpstreamLaws
from tests.contract.laws.place import PlaceLaws
from tests.contract.laws.schedules import ScheduleLaws
from tests.contract.laws.snapshot import SnapshotLaws
from tests.contract.laws.spans import SpanLaws
from tests.contract.laws.states import StateLaws
from tests.contract.laws.table import TableLaws

__all__ = [
    "ForgettingUpstreamLaws",
    "GrowingUpstreamLaws",
    "HidingUpstreamLaws",
    "LosingUpstreamLaws",
    "UpstreamLaws",
]


class UpstreamLaws(
    TableLaws, BoundsLaws, PlaceLaws, StateLaws, SnapshotLaws, ChangeLaws, FollowingLaws, SpanLaws, ScheduleLaws
):
    """Derive a test class from this where there is a fixture `laboratory`; every test begins with an empty table."""
