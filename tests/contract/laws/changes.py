"""Laws of the changes between two states."""

from __future__ import annotations

from itertools import pairwise

from tests.contract.laboratory import Laboratory, applied, delete, insert, move, update
from tests.contract.laws.moves import begun, commits, fill, now_and_then, pinned


class ChangeLaws:
    def test_changes_are_exactly_the_commits_in_between_in_their_order(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 5)
        upstream = begun(laboratory)
        laboratory.write(update(keys[0], "before"))
        first = pinned(upstream).epoch
        laboratory.write(update(keys[0], "one"))
        laboratory.hold(update(keys[1], "rolled back")).roll_back()
        laboratory.write(move(keys[0], keys[10], "two"))
        laboratory.write(delete(keys[1]), insert(keys[0], "three"))
        second = pinned(upstream, first).epoch
        laboratory.write(insert(keys[20], "after"))
        found = commits(upstream, first, second)
        assert [set(commit.writes) for commit in found] == [
            {update(keys[0], "one")},
            {delete(keys[0]), insert(keys[10], "two")},
            {delete(keys[1]), insert(keys[0], "three")},
        ]

    def test_changes_to_one_row_in_one_transaction_lead_to_what_it_left(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 5)
        upstream = begun(laboratory)
        before, first = laboratory.rows(), pinned(upstream).epoch
        laboratory.write(
            update(keys[0], "1"), move(keys[0], keys[9]), update(keys[9], "2"), delete(keys[1]), insert(keys[1], "3")
        )
        (commit,) = commits(upstream, first, pinned(upstream, first).epoch)
        assert applied(before, commit) == laboratory.rows()

    def test_changes_are_the_same_again_until_they_are_acknowledged(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        for number in range(3):
            laboratory.write(update(laboratory.keys[number]), insert(laboratory.keys[40 + number]))
            laboratory.write(delete(laboratory.keys[20 + number]))
            epochs.append(pinned(upstream, epochs[-1]).epoch)
        parts = [commits(upstream, one, two) for one, two in pairwise(epochs)]
        assert [len(part) for part in parts] == [2, 2, 2]
        for adapter in now_and_then(laboratory, upstream, epochs[0]):
            assert [commits(adapter, one, two) for one, two in pairwise(epochs)] == parts
            assert commits(adapter, epochs[0], epochs[-1]) == [commit for part in parts for commit in part]

    def test_a_commit_carries_its_own_version_on_each_of_its_changes(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        first = pinned(upstream).epoch
        for at in range(0, 12, 3):
            laboratory.write(*[insert(key) for key in laboratory.keys[at : at + 3]])
        found = commits(upstream, first, pinned(upstream, first).epoch)
        assert [len(commit.writes) for commit in found] == [3, 3, 3, 3]
        versions = [commit.version for commit in found]
        assert versions == sorted(versions)

    def test_a_transaction_belongs_to_the_first_state_that_shows_it(self, laboratory: Laboratory) -> None:
        keys = laboratory.keys
        fill(laboratory, 10)
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        held = laboratory.hold(update(keys[0], "held"))
        laboratory.write(update(keys[1], "one"))
        epochs.append(pinned(upstream, epochs[-1]).epoch)
        laboratory.write(update(keys[2], "two"))
        held.commit()
        laboratory.write(update(keys[3], "three"))
        epochs.append(pinned(upstream, epochs[-1]).epoch)
        first, second = (commits(upstream, one, two) for one, two in pairwise(epochs))
        assert [commit.writes for commit in first] == [(update(keys[1], "one"),)]
        assert {commit.writes for commit in second} == {
            (update(keys[0], "held"),),
            (update(keys[2], "two"),),
            (update(keys[3], "three"),),
        }

    def test_between_two_states_with_nothing_in_between_there_are_no_changes(self, laboratory: Laboratory) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        first = pinned(upstream).epoch
        assert commits(upstream, first, pinned(upstream, first).epoch) == []

    def test_a_change_is_shown_by_a_state_exactly_if_it_came_before_it(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        epochs = [pinned(upstream).epoch]
        held = laboratory.hold(insert(laboratory.keys[30], "held"))
        for number in range(3):
            laboratory.write(insert(laboratory.keys[number]), insert(laboratory.keys[10 + number]))
            epochs.append(pinned(upstream, epochs[-1]).epoch)
        held.commit()
        epochs.append(pinned(upstream, epochs[-1]).epoch)
        for epoch in epochs:
            earlier = {commit.version for commit in commits(upstream, epochs[0], epoch)}
            for batch in upstream.changes(epochs[0], epochs[-1]):
                found = upstream.shown(epoch.position, batch)
                assert found.null_count == 0
                assert found.to_pylist() == [version in earlier for version in batch["version"].to_pylist()]
