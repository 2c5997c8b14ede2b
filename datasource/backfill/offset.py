"""What Spark keeps in the checkpoint for us: one offset per batch, as JSON.

Nothing read:

    {"version": 1}

A barrier (keys in this order, no white space, one text per state):

    {"version": 1,
     "stream": "1f0c9a77",                                    the stream's own name
     "upstream": {"slot": "…", …},                            what the adapter needs to find its place again
     "epoch": {"number": 3, "position": "…", "version": 1, "timestamp": 1},
     "progress": [                                            the vnodes in key order, folded
        {"rows": [812, 790], "upto": ["1602"]},               vnodes 0 and 1: completed
        {"pos": ["2001"], "rows": 399, "upto": ["2400"]},     vnode 2: in progress
        {"upto": [["3200"], ["4000"], null]}],                vnodes 3 to 5: not started
     "ahead": [{"after": ["1"], "upto": ["9"], "position": "…"}],   optional, see `Ahead`
     "base": {…}}                                             optional, see `Barrier.base`

A finished backfill has `"progress": {"vnodes": 256, "rows": 1000000}`. Each range begins where the one before
ends. The text is canonical because Spark takes a different text for new data. An offset of a newer version is
refused; version 1 has golden files in `tests/golden`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from backfill.epoch import Epoch
from backfill.errors import OffsetError
from backfill.progress import CompletedRun, Finished, Frontier, InProgress, NotStarted, Progress, Slice, Vnode
from backfill.vnode import Key, KeyRange

VERSION: Final = 1

# JSON is untyped by nature; every value is checked where it is read.
Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Nothing:
    """The offset before the first batch. A constant: Spark asks for it again and again."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Keys whose rows were read at a *later* state than the epoch before this one.

    A chunk that was lost in a crash is read again at the state of that day. The batch that follows does not pass
    on those changes to its keys which that state already shows.
    """

    range: KeyRange
    position: str


@dataclass(frozen=True, slots=True)
class Barrier:
    """The end of a batch: the state of the upstream and the progress of every vnode."""

    stream: str
    upstream: tuple[tuple[str, str], ...]
    epoch: Epoch
    progress: Progress
    ahead: tuple[Ahead, ...] = ()
    base: Barrier | None = None
    """Where the batch really begins when a new checkpoint goes on from a state directory: not at `Nothing`."""


Offset: TypeAlias = Nothing | Barrier


def to_json(offset: Offset) -> Json:
    """The offset as the dict whose `json.dumps` is its canonical text."""
    match offset:
        case Nothing():
            return {"version": VERSION}
        case Barrier():
            return _barrier_to_json(offset)


def to_text(offset: Offset) -> str:
    return json.dumps(to_json(offset), separators=(",", ":"), ensure_ascii=False)


def from_json(value: Mapping[str, Any]) -> Offset:
    """The offset; OffsetError where it is of a newer version or not one of ours."""
    version = value.get("version")
    if not isinstance(version, int):
        raise OffsetError(
            "the checkpoint holds an offset without a version, so it was not written by the backfill source; "
            "use a fresh checkpointLocation"
        )
    if version > VERSION:
        raise OffsetError(
            f"the checkpoint holds an offset of version {version}, and this release reads up to {VERSION}; "
            "install the release that wrote it, or a newer one"
        )
    if "epoch" not in value:
        return Nothing()
    try:
        return _barrier_from_json(value)
    except (KeyError, TypeError, ValueError) as error:
        raise OffsetError(
            f"the checkpoint holds a damaged offset ({type(error).__name__} at {error}); restore the checkpoint, or "
            "start with a fresh checkpointLocation"
        ) from error


def from_text(text: str) -> Offset:
    return from_json(json.loads(text))


def _barrier_to_json(barrier: Barrier) -> Json:
    epoch = barrier.epoch
    value: Json = {
        "version": VERSION,
        "stream": barrier.stream,
        "upstream": dict(barrier.upstream),
        "epoch": {
            "number": epoch.number,
            "position": epoch.position,
            "version": epoch.version,
            "timestamp": epoch.timestamp,
        },
        "progress": _progress_to_json(barrier.progress),
    }
    if barrier.ahead:
        value["ahead"] = [
            {"after": item.range.after, "upto": item.range.upto, "position": item.position} for item in barrier.ahead
        ]
    if barrier.base is not None:
        value["base"] = _barrier_to_json(barrier.base)
    return value


def _barrier_from_json(value: Mapping[str, Any]) -> Barrier:
    epoch = value["epoch"]
    return Barrier(
        stream=value["stream"],
        upstream=tuple((str(name), str(text)) for name, text in value["upstream"].items()),
        epoch=Epoch(epoch["number"], epoch["position"], epoch["version"], epoch["timestamp"]),
        progress=_progress_from_json(value["progress"]),
        ahead=tuple(
            Ahead(KeyRange(_key(item["after"]), _key(item["upto"])), item["position"])
            for item in value.get("ahead", ())
        ),
        base=_barrier_from_json(value["base"]) if "base" in value else None,
    )


def _progress_to_json(progress: Progress) -> Json | list[Json]:
    if isinstance(progress, Finished):
        return {"vnodes": progress.vnode_count, "rows": progress.row_count}
    folded: list[Json] = []
    for item in progress.slices:
        match item:
            case CompletedRun():
                folded.append({"rows": list(item.row_counts), "upto": item.range.upto})
            case Vnode(progress=InProgress(current_pos=pos, row_count=rows)):
                folded.append({"pos": pos, "rows": rows, "upto": item.range.upto})
            case Vnode():
                if not folded or set(folded[-1]) != {"upto"}:
                    folded.append({"upto": []})
                folded[-1]["upto"].append(item.range.upto)
    return folded


def _progress_from_json(value: Json | list[Json]) -> Progress:
    if isinstance(value, dict):
        return Finished(value["vnodes"], value["rows"])
    slices: list[Slice] = []
    number, after = 0, None
    for item in value:
        if "pos" in item:
            progress = InProgress(tuple(item["pos"]), item["rows"])
            slices.append(Vnode(number, KeyRange(after, _key(item["upto"])), progress))
            number += 1
        elif "rows" in item:
            slices.append(CompletedRun(number, KeyRange(after, _key(item["upto"])), tuple(item["rows"])))
            number += len(item["rows"])
        else:
            for bound in item["upto"]:
                slices.append(Vnode(number, KeyRange(after, _key(bound)), NotStarted()))
                number, after = number + 1, _key(bound)
        after = slices[-1].range.upto
    return Frontier(tuple(slices))


def _key(value: list[str] | None) -> Key | None:
    return None if value is None else tuple(value)
