"""What a person has told a stream while it runs: to hold its snapshot, to read it more slowly, or to read rows again.

Only reading the table is held up. Changes to the part that has been read go on flowing, so at each barrier the sink
is right as it always is (RisingWave's Pause, Resume and Throttle, of which the first stops changes as well).

    {"version":1,"paused":false,"max_rows":1000}      keys in this order, no white space; `max_rows` may be null
    {"version":2,"paused":false,"max_rows":null,"requests":[
        {"id":"5e0c9a77","stream":"1f0c9a77","first":["1"],"last":null},      rows to read again, either end open
        {"id":"0d41b2c8","stream":"1f0c9a77","stop":true}]}                   an end to that

Without requests the file is of version 1, so that an older release can read it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from backfill import stored
from backfill.errors import StateError
from backfill.vnode import Key
from backfill.wording import too_new

CONTROL_VERSION: Final = 2
"""The newest version of the file."""


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """A person's wish that the stream of this name reads rows again: from `first` to `last`, both included.

    None is an open end.
    """

    id: str
    stream: str
    first: Key | None = None
    last: Key | None = None

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "stream": self.stream, "first": self.first, "last": self.last}


@dataclass(frozen=True, slots=True)
class Stop:
    """A person's wish for an end to what this stream is reading again, and to what waits."""

    id: str
    stream: str

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "stream": self.stream, "stop": True}


Request: TypeAlias = ReadAgain | Stop


@dataclass(frozen=True, slots=True)
class PendingRequests:
    """What a stream was asked for and has not taken up: the last stop, if there is one, and what was asked after it."""

    stop: Stop | None = None
    to_read: tuple[ReadAgain, ...] = ()

    def __bool__(self) -> bool:
        return self.stop is not None or bool(self.to_read)


@dataclass(frozen=True, slots=True)
class Control:
    """What a stream has been told. `max_rows` limits the snapshot rows of a batch; None: only the options do.

    `requests` are in the order in which they were made; those that are done may be among them.
    """

    paused: bool = False
    max_rows: int | None = None
    requests: tuple[Request, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the snapshot stands still."""
        return self.paused or self.max_rows == 0

    def holds_up_more(self, before: Control) -> bool:
        """Whether a batch may read fewer rows than it might have by `before`."""
        return self.rows_of(sys.maxsize) < before.rows_of(sys.maxsize)

    def rows_of(self, budget: int) -> int:
        """How many snapshot rows a batch may read if the options allow it `budget`."""
        if self.holds:
            return 0
        return budget if self.max_rows is None else min(budget, self.max_rows)

    def resumed(self) -> Control:
        """No longer paused. A limit stays, unless it would hold the snapshot as well."""
        return replace(self, paused=False, max_rows=self.max_rows or None)

    def paused_too(self) -> Control:
        """Paused; a limit is kept for later."""
        return replace(self, paused=True)

    def throttled(self, max_rows: int | None) -> Control:
        return replace(self, max_rows=max_rows)

    def pending(self, stream: str, taken_up: str | None) -> PendingRequests:
        """The stream's requests that came after `taken_up`. If a stop is among them, `taken_up` itself ends as well."""
        found = [request for request in self.requests if request.stream == stream]
        at = next((at for at, request in enumerate(found) if request.id == taken_up), -1)
        waiting = PendingRequests()
        for request in found[at + 1 :]:
            match request:
                case Stop():
                    waiting = PendingRequests(request)
                case ReadAgain():
                    waiting = PendingRequests(waiting.stop, (*waiting.to_read, request))
        return waiting

    def asked(self, request: Request, taken_up: str | None) -> Control:
        """The same with `request` appended, without requests of other streams and those before `taken_up`, which is
        known to have been taken up.
        """
        kept = [item for item in self.requests if item.stream == request.stream]
        at = next((at for at, item in enumerate(kept) if item.id == taken_up), 0)
        return replace(self, requests=(*kept[at:], request))

    def summary(self) -> str:
        """What the stream was told, in a few words for people; empty where there is nothing to tell."""
        limit = "" if self.max_rows is None else f"throttled to {self.max_rows} rows a batch"
        return ", ".join(filter(None, ("paused" if self.paused else "", limit)))

    def figures(self) -> dict[str, int | str]:
        """The same for programs: the words of `told`, and how many snapshot rows a batch may read, if limited."""
        limit = 0 if self.holds else self.max_rows
        return {} if limit is None else {"control": self.summary(), "control_rows": limit}

    def to_text(self) -> str:
        value: dict[str, Any] = {"version": 1, "paused": self.paused, "max_rows": self.max_rows}
        if self.requests:
            value |= {"version": 2, "requests": [request.to_json() for request in self.requests]}
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str | bytes) -> Control:
        """Reads what `to_text` gave. Raises StateError where it is of a newer version or not one of ours."""
        try:
            value = json.loads(text)
            version = stored.whole(value["version"])
            if version > CONTROL_VERSION:
                raise StateError(f"stateDir has a control file {too_new(version, CONTROL_VERSION)}")
            limit = value["max_rows"]
            control = cls(
                paused=value["paused"] is True,
                max_rows=None if limit is None else stored.whole(limit),
                requests=tuple(_request(item) for item in value.get("requests", ())),
            )
            stored.require_canonical(json.loads(control.to_text()), value)
        except stored.UNREADABLE as error:
            raise StateError(
                f"stateDir has a damaged control file ({type(error).__name__}); delete it, and pause or throttle the "
                "stream again"
            ) from error
        return control


def _request(value: Mapping[str, Any]) -> Request:
    name, stream = stored.text(value["id"]), stored.text(value["stream"])
    if "stop" in value:
        return Stop(name, stream)
    return ReadAgain(name, stream, stored.end(value["first"]), stored.end(value["last"]))
