"""Offsets and manifests of every released version are read to the last value; today's are written to the letter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backfill.errors import OffsetError, StagingError
from backfill.offset import VERSION, from_json, from_text, to_text
from backfill.staging import MANIFEST_VERSION, Manifest
from tests.golden.values import MANIFESTS, OFFSETS

FOLDER = Path(__file__).parent


def golden(kind: str, name: str) -> str:
    return (FOLDER / f"{kind}-v1-{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OFFSETS)
def test_an_offset_of_version_1_is_read_to_the_last_value(name: str) -> None:
    assert from_text(golden("offset", name)) == OFFSETS[name]


@pytest.mark.parametrize("name", OFFSETS)
def test_an_offset_is_written_to_the_letter_of_its_version(name: str) -> None:
    assert to_text(OFFSETS[name]) == golden("offset", name)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_of_version_1_is_read_to_the_last_value(name: str) -> None:
    assert Manifest.from_text(golden("manifest", name)) == MANIFESTS[name]


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_written_to_the_letter_of_its_version(name: str) -> None:
    assert MANIFESTS[name].to_text() == golden("manifest", name)


def test_each_file_is_read_by_a_test() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {
        *(f"offset-v1-{name}.json" for name in OFFSETS),
        *(f"manifest-v1-{name}.json" for name in MANIFESTS),
    }


@pytest.mark.parametrize("name", OFFSETS)
def test_an_offset_of_a_newer_version_is_refused_with_both_numbers(name: str) -> None:
    newer = {**json.loads(golden("offset", name)), "version": VERSION + 1}
    with pytest.raises(OffsetError, match=f"version {VERSION + 1}, and this release reads up to {VERSION};"):
        from_json(newer)


def test_a_newer_offset_is_refused_by_its_number_whatever_else_it_holds() -> None:
    with pytest.raises(OffsetError, match=f"version 7, and this release reads up to {VERSION};"):
        from_text('{"version":7,"epoch":[],"stream":{"a":null}}')


def test_a_manifest_of_a_newer_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(StagingError, match=f"version 2, and this release reads up to {MANIFEST_VERSION};"):
        Manifest.from_text('{"version": 2, "splits": "in another way"}')


def test_a_finished_backfill_takes_little_space() -> None:
    assert '"progress":{"vnodes":256,"rows":1000000}' in golden("offset", "finished")
