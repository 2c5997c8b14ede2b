"""Laws of the changes between two positions that a person names, for a batch."""

from __future__ import annotations

import pickle
from itertools import pairwise
from random import Random

import pytest

from backfill.errors import DataLossError, OptionsError
from backfill.upstream import EARLIEST, LATEST, ChangeReader
from tests.contract.laboratory import Laboratory, commits_of, insert
from tests.contract.laws.moves import STREAM, begun, commits, fill, followed, led, now, pinned, reopened, span, spanned
from tests.contract.laws.writer import Writer


class SpanLaws:
    @pytest.mark.parametrize("seed", range(2))
    def test_the_changes_between_two_positions_lead_from_one_state_to_the_other(
        self, laboratory: Laboratory, seed: int
    ) -> None:
        random = Random(seed)
        fill(laboratory, 15)
        epoch = pinned(begun(laboratory)).epoch
        writer = Writer(random, laboratory)
        states = [(now(laboratory), laboratory.rows())]
        for _ in range(6):
            for _ in range(random.randrange(5)):
                writer.write()
            states.append((now(laboratory), laboratory.rows()))
        parts = []
        for (after, rows), (upto, expected) in pairwise(states):
            parts.append(spanned(laboratory, after, upto))
            assert led(rows, parts[-1]) == expected
        whole = span(laboratory, states[0][0], states[-1][0])
        writer.write()
        elsewhere: ChangeReader = pickle.loads(pickle.dumps(whole))  # noqa: S301 - our own bytes
        for reader in (whole, elsewhere, whole):
            found = commits_of(reader.read(), laboratory.open().schema())
            assert found == [commit for part in parts for commit in part]
        writer.finish()
        # Nothing was acknowledged: the stream that the log is kept for can still read all of it.
        upstream = reopened(laboratory, epoch)
        assert led(states[0][1], commits(upstream, epoch, followed(upstream, epoch))) == laboratory.rows()

    def test_a_position_is_fixed_when_it_is_named(self, laboratory: Laboratory) -> None:
        begun(laboratory)
        laboratory.write(insert(laboratory.keys[0], "one"))
        reader = span(laboratory, EARLIEST, LATEST)
        laboratory.write(insert(laboratory.keys[1], "two"))
        schema = laboratory.open().schema()
        assert commits_of(reader.read(), schema)[-1].writes == (insert(laboratory.keys[0], "one"),)
        assert spanned(laboratory, reader.after, reader.upto) == commits_of(reader.read(), schema)
        assert [commit.writes for commit in spanned(laboratory, reader.upto)] == [(insert(laboratory.keys[1], "two"),)]
        assert spanned(laboratory, LATEST) == []
        assert spanned(laboratory, EARLIEST, EARLIEST) == []

    def test_what_is_no_position_is_refused(self, laboratory: Laboratory) -> None:
        begun(laboratory)
        before = now(laboratory)
        laboratory.write(insert(laboratory.keys[0]))
        after = now(laboratory)
        for starting, ending in (("yesterday", LATEST), (EARLIEST, "-1"), ("", LATEST), (after, before)):
            with pytest.raises(OptionsError):
                span(laboratory, starting, ending)

    def test_changes_between_two_positions_that_are_lost_are_not_passed_over(self, laboratory: Laboratory) -> None:
        bookmark = begun(laboratory).bookmark(STREAM)
        before = now(laboratory)
        laboratory.write(insert(laboratory.keys[0]))
        reader = span(laboratory, before, LATEST)
        laboratory.lose_changes(bookmark)
        with pytest.raises(DataLossError):
            list(reader.read())
