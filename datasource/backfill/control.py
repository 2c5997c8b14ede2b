"""What a person has told a stream while it runs: to hold its snapshot, or to read it more slowly.

Only reading the table is held up. Changes to the part that has been read go on flowing, so at each barrier the sink
is right as it always is (RisingWave's Pause, Resume and Throttle, of which the first stops changes as well).

    {"version":1,"paused":false,"max_rows":1000}      keys in this order, no white space; `max_rows` may be null
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

from backfill import stored
from backfill.errors import StateError

CONTROL_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Control:
    """`max_rows` is how many snapshot rows a batch may read, None for no limit beside the options'."""

    paused: bool = False
    max_rows: int | None = None

    @property
    def holds(self) -> bool:
        """Whether the snapshot stands still."""
        return self.paused or self.max_rows == 0

    def rows_of(self, budget: int) -> int:
        """How many snapshot rows a batch may read that might read `budget`."""
        if self.holds:
            return 0
        return budget if self.max_rows is None else min(budget, self.max_rows)

    def resumed(self) -> Control:
        """No longer paused. A limit stays, unless it would hold the snapshot as well."""
        return Control(max_rows=self.max_rows or None)

    def paused_too(self) -> Control:
        """Paused; a limit is kept for later."""
        return replace(self, paused=True)

    def throttled(self, max_rows: int | None) -> Control:
        return replace(self, max_rows=max_rows)

    def told(self) -> str:
        """In a few words, for people; empty where there is nothing to tell."""
        if self.holds:
            return "paused" if self.paused else "throttled to 0 rows a batch"
        return "" if self.max_rows is None else f"throttled to {self.max_rows} rows a batch"

    def to_text(self) -> str:
        value = {"version": CONTROL_VERSION, "paused": self.paused, "max_rows": self.max_rows}
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Control:
        """StateError where it is of a newer version or not one of ours."""
        try:
            value = json.loads(text)
            version = stored.whole(value["version"])
            if version > CONTROL_VERSION:
                raise StateError(
                    f"stateDir has a control file of version {version}, and this release reads up to "
                    f"{CONTROL_VERSION}; use the release that wrote it, or a newer one"
                )
            limit = value["max_rows"]
            control = cls(paused=value["paused"] is True, max_rows=None if limit is None else stored.whole(limit))
            stored.require_canonical(json.loads(control.to_text()), value)
        except stored.UNREADABLE as error:
            raise StateError(
                f"stateDir has a damaged control file ({type(error).__name__}); delete it, and pause or throttle the "
                "stream again"
            ) from error
        return control
