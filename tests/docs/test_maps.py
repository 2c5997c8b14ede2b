"""The map in a package's docstring names each of its modules, and no other; some have them in order."""

from __future__ import annotations

import ast
import re
from itertools import chain
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

import pytest

import backfill
import backfill.arrow
import backfill.command
import backfill.metrics
import backfill.sinks
import backfill.sinks.delta
import backfill.sinks.postgres
import backfill.spark
import backfill.staging
import backfill.state_dir
import backfill.upstream
import backfill.upstream.delta
import backfill.upstream.delta.changes
import backfill.upstream.delta.files
import backfill.upstream.delta.keys
import backfill.upstream.delta.snapshot
import backfill.upstream.delta.tables
import backfill.upstream.postgres
import backfill.upstream.postgres.changes
import backfill.upstream.postgres.decoder
import backfill.upstream.postgres.epochs
import backfill.upstream.postgres.replication
import backfill.upstream.postgres.session
import backfill.upstream.postgres.snapshot
import backfill.upstream.postgres.tables
import backfill.upstream.postgres.values
import backfill.whole_rows
import backfill_state
import backfill_state.upsert

LINE = re.compile(r"^(?:    backfill\.)?(\w+(?:, \w+)*)(?: {2,}\S.*)?$", re.MULTILINE)
"""Names with commas between them, then, unless the names say it, at least two blanks and what they are for."""


DELTA, POSTGRES = backfill.upstream.delta, backfill.upstream.postgres

IN_ORDER = [
    *(backfill, backfill.arrow, backfill.command, backfill.metrics, backfill.staging, backfill.state_dir),
    backfill.whole_rows,
    *(POSTGRES, POSTGRES.epochs, POSTGRES.changes, POSTGRES.snapshot, POSTGRES.replication, POSTGRES.tables),
    *(POSTGRES.decoder, POSTGRES.session, POSTGRES.values),
    *(DELTA, DELTA.changes, DELTA.snapshot, DELTA.tables, DELTA.files, DELTA.keys),
]

PACKAGES = [
    *(*IN_ORDER, backfill.sinks, backfill.sinks.delta, backfill.sinks.postgres),
    *(backfill.spark, backfill.upstream),
    *(backfill_state, backfill_state.upsert),
]


ROOT = Path(__file__).parents[2]
OUTSIDE = ["benchmarks", "integration/crash", "integration/demo", "integration/pictures", "integration/servers"]
"""The packages around the connector. They are read, not imported, so that these tests need no Spark or server."""

FILE = re.compile(r"^([\w.]+?)(?:\.py|/) {2,}\S", re.MULTILINE)
"""`module.py` or `folder/`, then at least two blanks and what it is for."""


@pytest.mark.parametrize("folder", OUTSIDE)
def test_a_map_of_what_is_around_names_every_module_once(folder: str) -> None:
    described = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text())) or ""
    there = [found.stem for found in (ROOT / folder).iterdir() if found.suffix == ".py" or found.is_dir()]
    ignored = {"__init__", "__main__", "__pycache__"}
    assert sorted(set(FILE.findall(described)) - ignored) == sorted(set(there) - ignored)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_map_names_every_module_once(package: ModuleType) -> None:
    assert sorted(named(package)) == sorted(found.name for found in iter_modules(package.__path__))


@pytest.mark.parametrize("package", IN_ORDER, ids=lambda package: package.__name__)
def test_a_module_imports_only_what_stands_after_it_on_the_map(package: ModuleType) -> None:
    place = {name: at for at, name in enumerate(named(package))}
    against = [
        f"{file}: {imported}"
        for name in place
        for file in files(Path(package.__path__[0]) / name)
        for imported in imported_by(file, package.__name__)
        if place.get(imported, len(place)) < place[name]
    ]
    assert not against


def named(package: ModuleType) -> list[str]:
    return [name for line in LINE.findall(package.__doc__ or "") for name in line.split(", ")]


def files(module: Path) -> list[Path]:
    return [module.with_suffix(".py")] if module.with_suffix(".py").exists() else sorted(module.rglob("*.py"))


def imported_by(file: Path, package: str) -> list[str]:
    """Returns the modules of `package` that a file imports anywhere, each by its name within the package."""
    found = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    paths = chain.from_iterable(
        [f"{node.module}.{item.name}" if isinstance(node, ast.ImportFrom) else item.name for item in node.names]
        for node in found
    )
    own = f"{package}."
    return [path.removeprefix(own).split(".")[0] for path in paths if path.startswith(own)]
