"""How the snapshot rows of one batch are cut into splits; kept beside their chunks.

Where a chunk was lost, its split says afterwards at which state it was read, or that it was given up.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from backfill import stored
from backfill.errors import StagingError
from backfill.offset import Ahead
from backfill.plan import Split
from backfill.vnode import KeyRange, merged
from backfill.wording import FRESH_START, too_new

MANIFEST_VERSION: Final = 2
"""The newest version. What version 1 can say is written as version 1."""


@dataclass(frozen=True, slots=True)
class AsPlanned:
    """Read at the batch's own epoch."""


@dataclass(frozen=True, slots=True)
class ReadLater:
    """Lost in a crash, and read at the state of this later position."""

    position: str


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Lost in a crash, and read by nobody in this batch: its rows are for a later one."""


Reading: TypeAlias = AsPlanned | ReadLater | GivenUp


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """One reader's part of a batch, and at which state it is read."""

    split: Split
    attempt: int = 1
    """A part of its chunk's name, so that two readings which may give different rows never have one name. It follows
    from the state that is read; earlier releases counted from 1 on.
    """

    reading: Reading = AsPlanned()

    @classmethod
    def of(cls, split: Split, position: str) -> PlannedSplit:
        """A split that is to be read at the batch's own epoch, which is at this position.

        Its attempt is that of the position, as a new checkpoint that goes on from stateDir plans an epoch of the same
        number anew, and a reader of the earlier plan may still come to its end.
        """
        return cls(split, _attempt(split, position))

    def is_of(self, position: str) -> bool:
        """Whether this is of a plan for an epoch at that position, as far as that matters to its rows."""
        return self.reading != AsPlanned() or self.attempt in (1, _attempt(self.split, position))

    def reread_at(self, position: str) -> PlannedSplit:
        return PlannedSplit(self.split, _attempt(self.split, position), ReadLater(position))

    @property
    def given_up(self) -> bool:
        return isinstance(self.reading, GivenUp)

    def to_json(self) -> dict[str, Any]:
        return {
            "ranges": [{"after": item.after, "upto": item.upto} for item in self.split.ranges],
            "rows": self.split.row_count,
            "attempt": self.attempt,
            "position": self.reading.position if isinstance(self.reading, ReadLater) else None,
            **({"given_up": True} if self.given_up else {}),
        }

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> PlannedSplit:
        ranges = tuple(KeyRange(stored.end(span["after"]), stored.end(span["upto"])) for span in item["ranges"])
        position = None if item["position"] is None else stored.text(item["position"])
        reading: Reading = AsPlanned() if position is None else ReadLater(position)
        return cls(
            Split(ranges, stored.whole(item["rows"])),
            stored.whole(item["attempt"]),
            GivenUp() if "given_up" in item else reading,
        )


def _attempt(split: Split, position: str) -> int:
    """The attempt at a split in the state at this position; manifests are compared with it, so it must never change."""
    return zlib.crc32(repr((position, split)).encode())


@dataclass(frozen=True, slots=True)
class Manifest:
    splits: tuple[PlannedSplit, ...]

    @property
    def ranges(self) -> tuple[KeyRange, ...]:
        """The key ranges that this batch was to read."""
        return merged(span for item in self.splits for span in item.split.ranges)

    def is_of(self, position: str) -> bool:
        """Whether this was planned for an epoch at that position."""
        return all(item.is_of(position) for item in self.splits)

    @property
    def given_up(self) -> tuple[KeyRange, ...]:
        """The key ranges that this batch was to read and did not."""
        return tuple(span for item in self.splits if item.given_up for span in item.split.ranges)

    @property
    def ahead(self) -> tuple[Ahead, ...]:
        """The keys that were read at later states than planned."""
        return tuple(
            Ahead(span, item.reading.position)
            for item in self.splits
            if isinstance(item.reading, ReadLater)
            for span in item.split.ranges
        )

    @property
    def chunks(self) -> dict[str, PlannedSplit]:
        """The splits that are read, by the names of their chunks."""
        return {name: item for name, item in self._named if not item.given_up}

    def reads_otherwise(self, name: str, split: Split) -> bool:
        """Whether another chunk than the one of this name is to have the rows of this split, or none is."""
        return any(item.split == split and (item.given_up or named != name) for named, item in self._named)

    @property
    def _named(self) -> Iterator[tuple[str, PlannedSplit]]:
        return ((f"chunk-{at}-{item.attempt}.arrow", item) for at, item in enumerate(self.splits))

    def with_others(self, other: Callable[[PlannedSplit], PlannedSplit], keep: Collection[str]) -> Manifest:
        """The manifest with another split in place of each that is read, except those whose files are to be kept."""
        return Manifest(tuple(item if item.given_up or name in keep else other(item) for name, item in self._named))

    def to_json(self) -> dict[str, Any]:
        return {"version": 2 if self.given_up else 1, "splits": [item.to_json() for item in self.splits]}

    def to_text(self) -> str:
        return json.dumps(self.to_json())

    @classmethod
    def from_text(cls, text: str | bytes) -> Manifest:
        """The manifest; StagingError where it is of a newer version or damaged."""
        try:
            value = json.loads(text)
            version = stored.whole(value["version"])
            if version > MANIFEST_VERSION:
                raise StagingError(f"the staging directory holds a manifest {too_new(version, MANIFEST_VERSION)}")
            found = cls(tuple(map(PlannedSplit.from_json, value["splits"])))
            stored.require_canonical(found.to_json(), value)
        except stored.UNREADABLE as error:
            raise StagingError(
                f"the staging directory holds a damaged manifest ({type(error).__name__}: {error}); start over with "
                f"{FRESH_START}"
            ) from error
        return found
