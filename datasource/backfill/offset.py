"""What Spark keeps in the checkpoint for us: one offset per batch, as JSON.

Nothing read:

    {"version": 1}

A barrier (keys in this order, no white space, one text per state):

    {"version": 1,
     "stream": "1f0c9a77",                                    the stream's own name
     "upstream": {"slot": "…", …},                            what the adapter needs to find its place again,
                                                              then what the core keeps (`upstream.Bookmark`)
     "epoch": {"number": 3, "position": "…", "version": 1, "timestamp": 1},
     "progress": [                                            the vnodes in key order, folded
        {"rows": [812, 790], "upto": ["1602"]},               vnodes 0 and 1: completed
        {"pos": ["2001"], "rows": 399, "upto": ["2400"]},     vnode 2: in progress
        {"upto": [["3200"], ["4000"], null]}],                vnodes 3 to 5: not started
     "ahead": [{"after": ["1"], "upto": ["9"], "position": "…"}],   optional, see `Ahead`
     "again": {"request": "5e0c9a77", "progress": [                 optional, see `Again`; with it the version is 2
        {"after": ["40"], "rows": [80], "upto": ["90"]}]},
     "base": {…}}                                             optional, see `Barrier.resumed_from`

A finished backfill has `"progress": {"vnodes": 256, "rows": 1000000}`. Each range begins where the one before
ends, the first at the smallest key; in `again`, `after` says so where one begins elsewhere. The text is canonical
because Spark takes a different text for new data. An offset of a newer version is refused; so an older release refuses
one with `again`, which it would lose. Each version has golden files in `tests/golden`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeAlias

from backfill import stored
from backfill.epoch import Epoch
from backfill.errors import OffsetError
from backfill.progress import (
    Again,
    CompletedRun,
    Finished,
    Frontier,
    InProgress,
    NotStarted,
    Progress,
    Slice,
    Vnode,
    touch,
)
from backfill.vnode import Key, KeyRange
from backfill.wording import too_new

VERSION: Final = 2
"""The newest version. What version 1 can say is written as version 1."""

# JSON is untyped by nature; every value is checked where it is read.
Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InitialOffset:
    """The offset before the first batch. It is always the same, as Spark asks for it again and again."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """Keys whose rows the sink has as of `position`, a *later* state than that at which the batch begins.

    A chunk that was lost in a crash is read again at whatever state the upstream is in by then. Until the batches have
    come to that state, they leave out the changes to its keys which it already shows; the first barrier that shows all
    of it is the last one with this item.
    """

    range: KeyRange
    position: str


@dataclass(frozen=True, slots=True)
class Barrier:
    """The end of a batch: the state of the upstream and the progress of every vnode."""

    stream: str
    bookmark: tuple[tuple[str, str], ...]
    epoch: Epoch
    progress: Progress
    ahead: tuple[Ahead, ...] = ()
    resumed_from: Barrier | None = None
    """Where the batch really begins when a new checkpoint goes on from a state directory: not at `InitialOffset`."""

    again: Again | None = None

    @property
    def order_matters(self) -> bool:
        """Whether something that depends on the order of keys is left to do."""
        return bool(self.progress.unfinished or self.ahead) or self.takes_again

    @property
    def taken_up(self) -> str | None:
        """The last request to read rows again that the stream has begun to carry out, or passed over."""
        return None if self.again is None else self.again.request

    @property
    def takes_again(self) -> bool:
        """Whether rows that somebody has asked for once more are left to read."""
        return self.again is not None and self.again.frontier is not None

    @property
    def took_again(self) -> bool:
        """Whether the batch that ends here had such rows to read, and so none for the first time. Only its manifest
        tells whether it gave some of them up.
        """
        return self.again is not None and isinstance(self.again.progress, Frontier)

    @property
    def has_manifest(self) -> bool:
        """Whether the batch that ends here has a manifest, even an empty one: it had rows of the table left to read."""
        return isinstance(self.progress, Frontier) or self.took_again


Offset: TypeAlias = InitialOffset | Barrier


def to_json(offset: Offset) -> Json:
    """The offset as a dict, of which `json.dumps` makes the canonical text; the text gives an equal dict back."""
    match offset:
        case InitialOffset():
            return {"version": 1}
        case Barrier():
            return _barrier_to_json(offset)


def to_text(offset: Offset) -> str:
    return json.dumps(to_json(offset), separators=(",", ":"), ensure_ascii=False)


def from_json(value: object) -> Offset:
    """Reads an offset; where it is of a newer version or not one of ours, raises OffsetError, which says what it is."""
    version = value.get("version") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or type(version) is not int:
        raise OffsetError("an offset without a version, so it was not written by the backfill source")
    if version > VERSION:
        raise OffsetError(f"an offset {too_new(version, VERSION)}")
    try:
        offset = InitialOffset() if "epoch" not in value else _barrier_from_json(value)
        stored.require_canonical(to_json(offset), value)
    except stored.UNREADABLE as error:
        raise _damaged(error) from error
    return offset


def from_text(text: str) -> Offset:
    try:
        value = json.loads(text)
    except stored.UNREADABLE as error:
        raise _damaged(error) from error
    return from_json(value)


def _damaged(error: Exception) -> OffsetError:
    return OffsetError(f"a damaged offset ({type(error).__name__}: {error})")


def _barrier_to_json(barrier: Barrier) -> Json:
    epoch = barrier.epoch
    value: Json = {
        "version": 1 if barrier.again is None else 2,
        "stream": barrier.stream,
        "upstream": dict(barrier.bookmark),
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
            {"after": _end(item.range.after), "upto": _end(item.range.upto), "position": item.position}
            for item in barrier.ahead
        ]
    if barrier.again is not None:
        value["again"] = {"request": barrier.again.request, "progress": _progress_to_json(barrier.again.progress)}
    if barrier.resumed_from is not None:
        value["base"] = _barrier_to_json(barrier.resumed_from)
    return value


def _barrier_from_json(value: Mapping[str, Any]) -> Barrier:
    epoch = value["epoch"]
    return Barrier(
        stream=stored.text(value["stream"]),
        bookmark=tuple((stored.text(name), stored.text(text)) for name, text in value["upstream"].items()),
        epoch=Epoch(
            number=stored.whole(epoch["number"]),
            position=stored.text(epoch["position"]),
            version=stored.whole(epoch["version"]),
            timestamp=stored.whole(epoch["timestamp"]),
        ),
        progress=_require_whole_table(_progress_from_json(value["progress"])),
        ahead=tuple(
            Ahead(KeyRange(stored.end(item["after"]), stored.end(item["upto"])), stored.text(item["position"]))
            for item in value.get("ahead", ())
        ),
        resumed_from=_barrier_from_json(value["base"]) if "base" in value else None,
        again=_again_from_json(value["again"]) if "again" in value else None,
    )


def _again_from_json(value: Mapping[str, Any]) -> Again:
    return Again(stored.text(value["request"]), _progress_from_json(value["progress"]))


def _progress_to_json(progress: Progress) -> Json | list[Json]:
    if isinstance(progress, Finished):
        return {"vnodes": progress.vnode_count, "rows": progress.row_count}
    folded: list[Json] = []
    end: Key | None = None
    for item in progress.slices:
        begin = {} if item.range.after == end else {"after": _end(item.range.after)}
        match item:
            case CompletedRun():
                folded.append({**begin, "rows": list(item.row_counts), "upto": _end(item.range.upto)})
            case Vnode(progress=InProgress(current_pos=pos, row_count=rows)):
                folded.append({**begin, "pos": list(pos), "rows": rows, "upto": _end(item.range.upto)})
            case Vnode():
                if begin or not folded or "rows" in folded[-1]:
                    folded.append({**begin, "upto": []})
                folded[-1]["upto"].append(_end(item.range.upto))
        end = item.range.upto
    return folded


def _end(key: Key | None) -> list[str] | None:
    return None if key is None else list(key)


def _progress_from_json(value: Json | list[Json]) -> Progress:
    if isinstance(value, dict):
        return Finished(stored.whole(value["vnodes"]), stored.whole(value["rows"]))
    slices: list[Slice] = []
    number, after = 0, None
    for item in value:
        after = stored.end(item["after"]) if "after" in item else after
        if "pos" in item:
            progress = InProgress(stored.key(item["pos"]), stored.whole(item["rows"]))
            slices.append(Vnode(number, KeyRange(after, stored.end(item["upto"])), progress))
            number += 1
        elif "rows" in item:
            counts = tuple(stored.whole(rows) for rows in item["rows"])
            slices.append(CompletedRun(number, KeyRange(after, stored.end(item["upto"])), counts))
            number += len(counts)
        else:
            for bound in item["upto"]:
                slices.append(Vnode(number, KeyRange(after, stored.end(bound)), NotStarted()))
                number, after = number + 1, stored.end(bound)
        after = slices[-1].range.upto
    _require_folded(slices)
    return Frontier(tuple(slices))


def _require_whole_table(progress: Progress) -> Progress:
    """The same progress; raises ValueError where its vnodes do not divide the whole key space without a gap."""
    if isinstance(progress, Frontier):
        slices = progress.slices
        apart = any(one.range.upto != two.range.after for one, two in pairwise(slices))
        ends = [item for item in slices if item.range.upto is None]
        if apart or slices[0].range.after is not None or ends != [slices[-1]]:
            raise ValueError("the vnodes do not divide the key space")
    return progress


def _require_folded(slices: list[Slice]) -> None:
    if not slices:
        raise ValueError("there are no vnodes")
    completed = [(one, two) for one, two in pairwise(slices) if isinstance(one, CompletedRun)]
    if any(isinstance(two, CompletedRun) and touch(one, two) for one, two in completed):
        raise ValueError("completed vnodes are not folded")
    if any(isinstance(item, CompletedRun) and not item.row_counts for item in slices):
        raise ValueError("a run of vnodes is empty")
