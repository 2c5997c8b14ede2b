"""What is stored as JSON is read to the last value in every released version, and written to the letter in today's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backfill.control import CONTROL_VERSION, Control
from backfill.errors import OffsetError, StagingError, StateError
from backfill.offset import VERSION, from_json, from_text, to_text
from backfill.staging import MANIFEST_VERSION, Manifest
from tests.golden.values import CONTROLS, MANIFESTS, OFFSETS

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


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_file_of_version_1_is_read_and_written_to_the_letter(name: str) -> None:
    assert Control.from_text(golden("control", name)) == CONTROLS[name]
    assert CONTROLS[name].to_text() == golden("control", name)


def test_a_control_file_of_a_newer_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(StateError, match=f"version 2, and this release reads up to {CONTROL_VERSION};"):
        Control.from_text('{"version":2,"speed":"low"}')


def test_each_file_is_read_by_a_test() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == {
        *(f"offset-v1-{name}.json" for name in OFFSETS),
        *(f"manifest-v1-{name}.json" for name in MANIFESTS),
        *(f"control-v1-{name}.json" for name in CONTROLS),
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
