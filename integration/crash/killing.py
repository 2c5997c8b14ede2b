"""Ends a process at a named step of the stream, without a hook in the code that is tested.

Functions of `backfill` are wrapped when their module is imported, in whatever process that is: `install` is called
by a driver of ours, and by the `sitecustomize` in `site/`, which every Python process of a Spark application loads
if that folder is on its PYTHONPATH. Nothing of `backfill` is imported here.

A step strikes once in a whole application, however many processes pass it: the first that does makes a file by its
name in the folder of marks. Processes count how often they pass it each on its own.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal

VARIABLE: Final = "BACKFILL_TEST_STEPS"

Action = Literal["process", "group", "wait", "sleep"]
"""SIGKILL this process; SIGKILL its process group; wait for ever to be killed; go on after some seconds."""

Moment = Literal["before", "after", "yield", "move before", "move after"]


@dataclass(frozen=True)
class Step:
    """Where a named step is: before or after a call, or after a generator made an item.

    "move" is the renaming of a staged file whose name begins with `prefix`.
    """

    module: str
    function: str
    moment: Moment
    prefix: str = ""


STEPS: Final[Mapping[str, Step]] = {
    # the first latestOffset: the record, the publication, the slot
    "stream named": Step("backfill.state_dir.record", "Record.begin", "after"),
    "publication about to be made": Step("backfill.upstream.postgres.replication.publication", "make", "before"),
    "publication made": Step("backfill.upstream.postgres.replication.publication", "make", "after"),
    "slot made": Step("backfill.upstream.postgres.replication.slot", "make_slot", "after"),
    "bounds kept": Step("backfill.state_dir.record", "Record.keep_bounds", "after"),
    # every latestOffset
    "state about to be written": Step("backfill_state.duckdb_store", "DuckDBProgressStore.commit", "before"),
    "state being written": Step("backfill_state.duckdb_store", "write_barrier", "after"),
    "state written": Step("backfill_state.duckdb_store", "DuckDBProgressStore.commit", "after"),
    "about to acknowledge": Step("backfill.upstream.postgres.adapter", "PostgresUpstream.acknowledge", "before"),
    "slot about to be advanced": Step("backfill.upstream.postgres.replication.slot", "advance", "before"),
    "slot advanced": Step("backfill.upstream.postgres.replication.slot", "advance", "after"),
    "about to forget files": Step("backfill.staging", "Staging.forget_before", "before"),
    "files forgotten": Step("backfill.staging", "Staging.forget_before", "after"),
    "epoch found": Step("backfill.upstream.postgres.epochs.steps", "Epochs._stepped", "after"),
    "measured": Step("backfill.upstream.postgres.adapter", "PostgresUpstream.measure", "after"),
    "manifest about to appear": Step("backfill.staging.folder", "Folder.path", "move before", "manifest"),
    "manifest there": Step("backfill.staging.folder", "Folder.path", "move after", "manifest"),
    "offset about to be logged": Step("backfill.stream", "Stream.latest_offset", "after"),
    # partitions
    "offset logged": Step("backfill.stream", "Stream.parts", "before"),
    "pinned again": Step("backfill.upstream.postgres.adapter", "PostgresUpstream.repin", "after"),
    "changes about to be staged": Step("backfill.staging.folder", "Folder.path", "move before", "changes"),
    "changes staged": Step("backfill.staging.folder", "Folder.path", "move after", "changes"),
    "partitions made": Step("backfill.stream", "Stream.parts", "after"),
    # readers
    "chunk about to be read": Step("backfill.handoff", "_counted", "before"),
    "in the middle of a chunk": Step("backfill.handoff", "_counted", "yield"),
    "chunk about to be staged": Step("backfill.staging.folder", "Folder.path", "move before", "chunk"),
    "chunk staged": Step("backfill.staging.folder", "Folder.path", "move after", "chunk"),
}
"""The steps inside the connector. Drivers have some of their own and tell of them by `reached`."""

LAST_ROWS_STEPS: Final[Mapping[str, Step]] = {
    "last rows read": Step("backfill_state.upsert.chunks", "Chunks.look_up", "after"),
    "last rows being written": Step("backfill_state.upsert.chunks", "Chunks.write", "after"),
    "last rows about to be committed": Step("backfill_state.upsert.duckdb_state", "write_header", "after"),
    "last rows committed": Step("backfill.whole_rows.last_rows", "LastRows.changes", "after"),
}
"""Further steps of `partitions` where the last row of every key is kept."""

SINK_STEPS: Final = ("sink about to be written", "sink written", "commit logged")
"""Told by drivers: around the sink's transaction, and after the engine has logged the commit.

Spark does not tell of the last one; "state about to be written" comes soon after it.
"""

_ALL: Final = {**STEPS, **LAST_ROWS_STEPS}


@dataclass(frozen=True)
class Strike:
    """What happens when a process passes the step for the `nth` time."""

    step: str
    nth: int = 1
    action: Action = "process"
    seconds: float = 0.0

    def __post_init__(self) -> None:
        assert self.step in _ALL or self.step in SINK_STEPS, f"no step is called {self.step!r}"


@dataclass(frozen=True)
class Plan:
    """What an application is to suffer. `settings` are pairs of "module:NAME" and the number to set it to."""

    marks: str
    strikes: tuple[Strike, ...] = ()
    settings: tuple[tuple[str, int], ...] = ()

    def to_environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Plan | None:
        text = environment.get(VARIABLE)
        if not text:
            return None
        value = json.loads(text)
        strikes = tuple(Strike(**item) for item in value["strikes"])
        return cls(value["marks"], strikes, tuple((name, number) for name, number in value["settings"]))


_plan: Plan | None = None
_passed: dict[str, int] = {}


def install(plan: Plan | None) -> None:
    """Gives modules of the connector their steps from now on, also those that were imported before."""
    global _plan  # noqa: PLW0603 - one plan for a process, as the steps are those of the process
    _plan = plan
    _passed.clear()
    if plan is None:
        return
    wanted = _wrapped_modules(plan)
    for name in wanted:
        if name in sys.modules:
            _prepare(sys.modules[name], plan)
    sys.meta_path.insert(0, _Finder(wanted, plan))


def reached(step: str) -> None:
    """Notes that this process passes a step, and acts if one is to strike there."""
    plan = _plan
    if plan is None:
        return
    _passed[step] = _passed.get(step, 0) + 1
    for strike in plan.strikes:
        if strike.step == step and strike.nth == _passed[step] and _first(plan, strike):
            _act(strike)


def struck(plan: Plan) -> list[str]:
    """The steps that have struck in this application."""
    return sorted(mark.name for mark in Path(plan.marks).glob("*"))


def _first(plan: Plan, strike: Strike) -> bool:
    try:
        (Path(plan.marks) / f"{strike.step} ({strike.nth}, {strike.action})").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _act(strike: Strike) -> None:
    match strike.action:
        case "process":
            os.kill(os.getpid(), signal.SIGKILL)
        case "group":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        case "wait":
            while True:
                time.sleep(60)
        case "sleep":
            time.sleep(strike.seconds)


# -- wrapping --------------------------------------------------------------------------------------------------------


def _wrapped_modules(plan: Plan) -> frozenset[str]:
    stepped = {_ALL[strike.step].module for strike in plan.strikes if strike.step in _ALL}
    return frozenset(stepped | {name.partition(":")[0] for name, _ in plan.settings})


def _prepare(module: ModuleType, plan: Plan) -> None:
    for name, number in plan.settings:
        where, _, attribute = name.partition(":")
        if where == module.__name__:
            assert hasattr(module, attribute), f"{where} has no {attribute}"
            setattr(module, attribute, number)
    for name in {strike.step for strike in plan.strikes}:
        step = _ALL.get(name)
        if step is not None and step.module == module.__name__:
            _wrap(module, name, step)


def _wrap(module: ModuleType, name: str, step: Step) -> None:
    owner: Any = module
    *path, attribute = step.function.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, attribute, _WRAPPERS[step.moment](getattr(owner, attribute), name, step.prefix))


def _before(function: Callable[..., Any], name: str, _: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        reached(name)
        return function(*arguments, **named)

    return wrapped


def _after(function: Callable[..., Any], name: str, _: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        reached(name)
        return result

    return wrapped


def _at_yield(function: Callable[..., Iterator[Any]], name: str, _: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Iterator[Any]:
        for item in function(*arguments, **named):
            yield item
            reached(name)

    return wrapped


def _at_move(moment: Literal["before", "after"]) -> Callable[..., Callable[..., Any]]:
    def wrap(function: Callable[..., Any], name: str, prefix: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*arguments: Any, **named: Any) -> Any:
            filesystem, path = function(*arguments, **named)
            return _FileSystem(filesystem, name, prefix, moment), path

        return wrapped

    return wrap


class _FileSystem:
    """A file system that passes a step at each renaming."""

    def __init__(self, inner: Any, name: str, prefix: str, moment: str) -> None:
        self._inner, self._name, self._prefix, self._moment = inner, name, prefix, moment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def move(self, source: str, target: str) -> None:
        hit = target.rpartition("/")[2].startswith(self._prefix)
        if hit and self._moment == "before":
            reached(self._name)
        self._inner.move(source, target)
        if hit and self._moment == "after":
            reached(self._name)


_WRAPPERS: Final[Mapping[str, Callable[..., Callable[..., Any]]]] = {
    "before": _before,
    "after": _after,
    "yield": _at_yield,
    "move before": _at_move("before"),
    "move after": _at_move("after"),
}


class _Finder(importlib.abc.MetaPathFinder):
    """Lets others find the modules, and prepares the named ones when they have been loaded."""

    def __init__(self, names: Iterable[str], plan: Plan) -> None:
        self._names = frozenset(names)
        self._plan = plan

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._names:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is not None and found.loader is not None:
            found.loader = _Loader(found.loader, self._plan)
        return found


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, plan: Plan) -> None:
        self._inner = inner
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        _prepare(module, self._plan)
