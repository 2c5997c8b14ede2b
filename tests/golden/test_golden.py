"""Stored JSON of every released version is read to the last value, and written again to the letter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backfill.control import CONTROL_VERSION, Control
from backfill.errors import OffsetError, StagingError, StateError
from backfill.offset import VERSION, from_json, from_text, to_text
from backfill.staging.manifest import MANIFEST_VERSION, Manifest
from tests.golden import values
from tests.golden.values import OFFSETS

FOLDER = Path(__file__).parent


VERSIONS: dict[str, dict[int, dict[str, Any]]] = {
    "offset": {1: OFFSETS, 2: values.AGAIN},
    "manifest": {1: values.MANIFESTS, 2: values.GIVEN_UP},
    "control": {1: values.CONTROLS, 2: values.REQUESTS},
}
FILES = {
    f"{kind}-v{version}-{name}.json": (kind, value)
    for kind, versions in VERSIONS.items()
    for version, named in versions.items()
    for name, value in named.items()
}
READ: dict[str, Callable[[str], Any]] = {
    "offset": from_text,
    "manifest": Manifest.from_text,
    "control": Control.from_text,
}


def golden(kind: str, name: str) -> str:
    return (FOLDER / f"{kind}-v1-{name}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", FILES)
def test_each_released_version_is_read_to_the_last_value(file: str) -> None:
    kind, value = FILES[file]
    assert READ[kind]((FOLDER / file).read_text(encoding="utf-8")) == value


@pytest.mark.parametrize("file", FILES)
def test_each_value_is_written_to_the_letter_in_the_oldest_version_that_can_say_it(file: str) -> None:
    kind, value = FILES[file]
    assert (to_text(value) if kind == "offset" else value.to_text()) == (FOLDER / file).read_text(encoding="utf-8")


def test_a_control_file_of_a_newer_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(StateError, match=f"version 3, and this release reads up to {CONTROL_VERSION};"):
        Control.from_text('{"version":3,"speed":"low"}')


def test_each_file_is_read_by_a_test() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == set(FILES)


@pytest.mark.parametrize("name", OFFSETS)
def test_an_offset_of_a_newer_version_is_refused_with_both_numbers(name: str) -> None:
    newer = {**json.loads(golden("offset", name)), "version": VERSION + 1}
    with pytest.raises(OffsetError, match=f"version {VERSION + 1}, and this release reads up to {VERSION};"):
        from_json(newer)


def test_a_newer_offset_is_refused_by_its_number_whatever_else_it_holds() -> None:
    with pytest.raises(OffsetError, match=f"version 7, and this release reads up to {VERSION};"):
        from_text('{"version":7,"epoch":[],"stream":{"a":null}}')


def test_a_manifest_of_a_newer_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(StagingError, match=f"version 3, and this release reads up to {MANIFEST_VERSION};"):
        Manifest.from_text('{"version": 3, "splits": "in another way"}')


def test_a_finished_backfill_takes_little_space() -> None:
    assert '"progress":{"vnodes":256,"rows":1000000}' in golden("offset", "finished")
