"""What is kept of a batch in addition to its chunks: the manifest, and the number of its files of changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.errors import StagingError
from backfill.plan import Split
from backfill.staging import Staging
from backfill.staging.manifest import Manifest, PlannedSplit, ReadLater
from backfill.vnode import WHOLE_TABLE, KeyRange
from tests.core.strategies import damaged, manifests
from tests.golden.values import MANIFESTS


def test_a_manifest_is_there_once_it_is_kept_and_may_be_replaced(staging: Staging) -> None:
    assert staging.of_batch(7).manifest() is None
    for manifest in MANIFESTS.values():
        staging.of_batch(7).keep_manifest(manifest)
        assert staging.of_batch(7).manifest() == manifest


def test_how_many_files_of_changes_there_are_is_written_to_the_letter_and_read_again(
    staging: Staging, file: Path
) -> None:
    listed = file.with_name("changes.json")
    staging.of_batch(7).keep_changes(3)
    assert listed.read_text() == '{"version": 1, "files": 3}'
    assert staging.of_batch(7).change_files() == 3
    listed.write_text('{"version": 2, "files": 3}')
    with pytest.raises(StagingError, match="is of version 2, and this release reads 1"):
        staging.of_batch(7).change_files()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": 1, "files": "3"}', "null"])
def test_what_is_no_list_of_changes_is_refused_with_what_to_do(staging: Staging, file: Path, text: str) -> None:
    staging.of_batch(7).keep_changes(3)
    file.with_name("changes.json").write_text(text)
    with pytest.raises(StagingError, match=r"epoch 7 .*cannot be read.*onExistingState=restart"):
        staging.of_batch(7).change_files()
    with pytest.raises(StagingError, match=r"epoch 8 .*cannot be read"):
        staging.of_batch(8).change_files()


@given(manifests)
def test_a_manifest_comes_back_from_its_text(manifest: Manifest) -> None:
    assert Manifest.from_text(manifest.to_text()) == manifest


def test_each_state_that_a_split_is_read_at_has_a_file_of_its_own() -> None:
    """This holds where two drivers plan the split anew at once, and neither has seen what the other wrote."""
    split = PlannedSplit(Split((WHOLE_TABLE,), 5))
    later, latest = split.reread_at("later"), split.reread_at("latest")
    assert later == PlannedSplit(Split((WHOLE_TABLE,), 5), later.attempt, ReadLater("later"))
    names = [name for item in (split, later, latest) for name in Manifest((item,)).chunks]
    assert names[0] == "chunk-0-1.arrow"
    assert len(set(names)) == 3
    assert later.reread_at("latest") == latest


def test_a_split_that_is_planned_anew_has_the_same_file_only_where_the_same_rows_are_read() -> None:
    split, less = Split((WHOLE_TABLE,), 5), Split((KeyRange(None, ("9",)),), 5)
    plans = [PlannedSplit.of(*plan) for plan in [(split, "0/1"), (split, "0/2"), (less, "0/1"), (split, "0/1")]]
    names = [next(iter(Manifest((plan,)).chunks)) for plan in plans]
    assert len(set(names)) == 3
    assert names[0] == names[3]


def test_a_manifest_is_of_the_position_that_it_was_planned_for_and_one_of_earlier_releases_of_any() -> None:
    planned = PlannedSplit.of(Split((WHOLE_TABLE,), 5), "0/1")
    assert Manifest((planned,)).is_of("0/1")
    assert not Manifest((planned, planned.reread_at("0/2"))).is_of("0/2")
    assert Manifest((planned.reread_at("0/2"),)).is_of("0/1")
    assert MANIFESTS["first-attempt"].is_of("0/1")
    # Manifests of earlier releases have this number, so it must stay.
    split = Split((KeyRange(None, ("7", "x")), KeyRange(("8", "é"), None)), 20)
    assert PlannedSplit.of(split, "16/B374DA00 750:752:750").attempt == 3508174446


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_manifest_is_refused_or_was_not_damaged(data: st.DataObject) -> None:
    golden = data.draw(st.sampled_from([json.loads(manifest.to_text()) for manifest in MANIFESTS.values()]))
    value = data.draw(damaged(golden))
    try:
        manifest = Manifest.from_text(json.dumps(value))
    except StagingError:
        return
    assert json.dumps(json.loads(manifest.to_text()), sort_keys=True) == json.dumps(value, sort_keys=True)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '{"version": 1}', '{"version": null}', "[" * 100_000, "\xff"]
)
def test_what_is_no_manifest_is_refused(staging: Staging, file: Path, text: str) -> None:
    file.parent.mkdir(parents=True)
    (file.parent / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(StagingError, match="damaged manifest"):
        staging.of_batch(7).manifest()
