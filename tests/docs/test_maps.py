"""The map in a package's docstring names each of its modules, and no other."""

from __future__ import annotations

import re
from pkgutil import iter_modules
from types import ModuleType

import pytest

import backfill
import backfill.sinks
import backfill.upstream.delta
import backfill.upstream.postgres
import backfill_state.upsert

LINE = re.compile(r"^(?:    backfill\.)?(\w+(?:, \w+)*)(?: {2,}\S.*)?$", re.MULTILINE)
"""Names with commas between them, then at least two blanks and what they are for, if that needs a word."""


@pytest.mark.parametrize(
    "package",
    [backfill, backfill.sinks, backfill.upstream.delta, backfill.upstream.postgres, backfill_state.upsert],
    ids=lambda package: package.__name__,
)
def test_a_map_names_every_module_once(package: ModuleType) -> None:
    named = [name for line in LINE.findall(package.__doc__ or "") for name in line.split(", ")]
    modules = [found.name for found in iter_modules(package.__path__) if found.name != "__main__"]
    assert sorted(named) == sorted(modules)
