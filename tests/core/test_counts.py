"""Counts of changes that cannot be kept: the stream goes on, and says so once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from backfill.counts import ChangeCounter, Counts, Tally
from backfill.state_dir.counts_file import keep_counts, read_counts


def test_counts_that_cannot_be_kept_are_reported_once_until_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "stateDir"
    counting = ChangeCounter(keep=partial(keep_counts, folder))
    counting.begin("1f0c9a77", 1)
    for times in (1, 2):
        for epoch in (3 * times, 3 * times + 1):
            counting.add(epoch, Tally(passed_on=1))
            assert caplog.text.count("what has been counted is not kept") == times
        folder.mkdir()
        counting.add(3 * times + 2, Tally(passed_on=1))
        kept = read_counts(folder)
        assert kept is not None
        assert kept.passed_on == 3 * times
        (folder / "counts.json").unlink()
        folder.rmdir()


def test_the_moment_of_a_clock_that_was_set_back_is_noted() -> None:
    """Otherwise the stream would never be told to be behind until the clock is as late again."""
    kept: list[Counts] = []
    counting = ChangeCounter(keep=kept.append)
    counting.begin("1f0c9a77", 1)
    for moment in (9_000_000, 9_500_000, 5_000_000):
        counting.complete(moment)
    assert [counts.complete_until for counts in kept] == [9_000_000, 5_000_000]
