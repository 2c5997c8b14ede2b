"""The map in a package's docstring names each of its modules, and no other; that of `backfill` has them in order."""

from __future__ import annotations

import ast
import re
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

import pytest

import backfill
import backfill.sinks
import backfill.spark
import backfill.upstream.delta
import backfill.upstream.postgres
import backfill_state
import backfill_state.upsert

LINE = re.compile(r"^(?:    backfill\.)?(\w+(?:, \w+)*)(?: {2,}\S.*)?$", re.MULTILINE)
"""Names with commas between them, then at least two blanks and what they are for, if that needs a word."""


PACKAGES = [
    *(backfill, backfill.sinks, backfill.spark, backfill.upstream.delta, backfill.upstream.postgres),
    *(backfill_state, backfill_state.upsert),
]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_map_names_every_module_once(package: ModuleType) -> None:
    assert sorted(named(package)) == sorted(found.name for found in iter_modules(package.__path__))


def test_a_module_imports_only_what_stands_after_it_on_the_map() -> None:
    place = {name: at for at, name in enumerate(named(backfill))}
    against = [
        f"{file}: {imported}"
        for name in place
        for file in files(Path(backfill.__path__[0]) / name)
        for imported in imported_by(file)
        if place.get(imported, len(place)) < place[name]
    ]
    assert not against


def named(package: ModuleType) -> list[str]:
    return [name for line in LINE.findall(package.__doc__ or "") for name in line.split(", ")]


def files(module: Path) -> list[Path]:
    return [module.with_suffix(".py")] if module.with_suffix(".py").exists() else sorted(module.rglob("*.py"))


def imported_by(file: Path) -> list[str]:
    """The modules of `backfill`, by their first names, that a file imports anywhere in it."""
    found = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    paths = chain.from_iterable(
        [f"{node.module}.{item.name}" if isinstance(node, ast.ImportFrom) else item.name for item in node.names]
        for node in found
    )
    return [path.split(".")[1] for path in paths if path.startswith("backfill.")]
