"""Laws that hold for random schedules of writes, reads and restarts."""

from __future__ import annotations

from random import Random

import pytest

from backfill.upstream import Step
from tests.contract.laboratory import Laboratory, applied
from tests.contract.laws.moves import UNLIMITED, begun, commits, fill, followed, pinned, read, reopened
from tests.contract.laws.writer import Writer


class ScheduleLaws:
    @pytest.mark.parametrize("seed", range(4))
    def test_changes_lead_from_each_state_to_the_next_whatever_happens(self, laboratory: Laboratory, seed: int) -> None:
        random = Random(seed)
        fill(laboratory, 15)
        upstream = begun(laboratory)
        writer = Writer(random, laboratory)
        epoch = pinned(upstream).epoch
        pin = pinned(upstream, epoch)
        epoch, rows = pin.epoch, dict(read(upstream, pin))
        for _ in range(12):
            for _ in range(random.randrange(4)):
                writer.write()
            step = upstream.snapshot_epoch(epoch, max_changes=random.choice([3, UNLIMITED]))
            if random.random() < 0.3:
                upstream = reopened(laboratory, epoch)
                step = Step(step.epoch, None)
            for commit in commits(upstream, epoch, step.epoch):
                rows = applied(rows, commit)
            if step.pin is not None:
                assert dict(read(upstream, step.pin)) == rows
            epoch = step.epoch
            if random.random() < 0.5:
                upstream.acknowledge(epoch)
        writer.finish()
        for _ in range(100):
            later = followed(upstream, epoch, most=random.choice([2, UNLIMITED]))
            for commit in commits(upstream, epoch, later):
                rows = applied(rows, commit)
            if later == epoch:
                break
            epoch = later
            upstream.acknowledge(epoch)
        assert rows == laboratory.rows()
