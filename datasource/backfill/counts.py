"""What has become of the changes that a stream has read, counted for whoever watches.

Each batch is counted once, when its changes are read, in the process that reads them. A batch that is run again after
a crash has the same changes, and its epoch is counted already, unless the crash came just before: then a batch that is
completed from kept last rows may stay uncounted. With a new checkpoint that goes on from stateDir, changes that were
counted and that its sink does not have count once more. The counts are kept in `counts.json` in stateDir; where that is
lost they begin anew, and `since` says when.

    {"version":1,"stream":"1f0c9a77","since":1772366404000000,"epoch":7,"passed_on":40,"held_back":2,
     "complete_until":1772366504000000}

Nothing but what people are shown depends on it, so a file that cannot be understood is as good as none.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Final

from backfill import stored
from backfill.amounts import iso

logger = logging.getLogger("backfill")

COUNTS_VERSION: Final = 1

NOTE_INTERVAL: Final = 1_000_000
"""How often, in microseconds, a stream with nothing to read notes that it is complete."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Changes of the log between the state of `since` and the epoch of that number; times in µs since 1970."""

    stream: str
    since: int
    epoch: int
    passed_on: int = 0
    """Changes that were emitted, as one row or as two; or that would have been, had they not changed nothing or come
    late.
    """

    held_back: int = 0
    """Changes that were left out, because the snapshot has not come to their rows or has shown them already. Until it
    has its first row the log is not read, and nothing is counted.
    """

    complete_until: int = 0
    """The last moment of which the stream is known to have everything that was committed; 0 where nobody noted it."""

    def and_batch(self, epoch: int, tally: Tally) -> Counts:
        """These and the changes of the batch that ends at this epoch, unless it is counted already."""
        if epoch <= self.epoch:
            return self
        passed_on, held_back = self.passed_on + tally.passed_on, self.held_back + tally.held_back
        return replace(self, epoch=epoch, passed_on=passed_on, held_back=held_back)

    def up_to(self, epoch: int) -> Counts:
        """These, with what comes after this epoch still to be counted, though some of it may be counted already."""
        return replace(self, epoch=min(self.epoch, epoch))

    def to_text(self) -> str:
        return json.dumps({"version": COUNTS_VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Counts | None:
        """None where it is not of this version."""
        try:
            value = json.loads(text)
            if stored.whole(value.pop("version")) != COUNTS_VERSION:
                return None
            stream = stored.text(value.pop("stream"))
            return cls(stream, **{name: stored.whole(number) for name, number in value.items()})
        except stored.UNREADABLE:
            return None


@dataclass(slots=True)
class Tally:
    """What became of the changes of one batch, added up while they are read."""

    passed_on: int = 0
    held_back: int = 0

    def add(self, changes: int, passed_on: int) -> None:
        self.passed_on += passed_on
        self.held_back += changes - passed_on


class Counting:
    """The counts of one stream while it runs; `read` and `keep` are for other processes and the next one of its own.

    An OSError of `keep` is only said, once until they are kept again.
    """

    def __init__(
        self, read: Callable[[], Counts | None] = lambda: None, keep: Callable[[Counts], None] = lambda _: None
    ) -> None:
        self._read, self._keep = read, keep
        self._counts: Counts | None = None
        self._said_unkept = False

    def begin(self, stream: str, since: int) -> None:
        """Goes on with what is counted of this stream; where nothing is, counting begins at this moment."""
        if self._counts is None:
            found = self._read()
            self._counts = found if found is not None and found.stream == stream else Counts(stream, since, 0)

    def resume(self, epoch: int) -> None:
        """A new checkpoint goes on from the state directory: its batches after this epoch are others than before."""
        if self._counts is not None:
            self._replace(self._counts.up_to(epoch))

    def add(self, epoch: int, tally: Tally) -> None:
        """Counts a batch, whose readers are planned."""
        if self._counts is not None:
            self._replace(self._counts.and_batch(epoch, tally))

    def complete(self, until: int | None) -> None:
        """Tells other processes, now and then, that a stream with nothing to read is not behind; None is not known.

        Also where the upstream's clock was set back: it would not be behind until it is that late again.
        """
        if self._counts is not None and until is not None and abs(until - self._counts.complete_until) >= NOTE_INTERVAL:
            self._replace(replace(self._counts, complete_until=until))

    def _replace(self, counts: Counts) -> None:
        self._counts = counts
        try:
            self._keep(counts)
        except OSError as error:
            if not self._said_unkept:
                logger.warning("what has been counted is not kept: %s", error)
            self._said_unkept = True
        else:
            self._said_unkept = False

    def figures(self) -> dict[str, int | str]:
        return {} if self._counts is None else counted(self._counts)


def counted(counts: Counts) -> dict[str, int | str]:
    """The counts under the names by which they are shown everywhere."""
    return {
        "changes_passed_on": counts.passed_on,
        "changes_held_back": counts.held_back,
        "changes_counted_since": iso(counts.since),
    }
