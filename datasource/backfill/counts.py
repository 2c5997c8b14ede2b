"""What has become of the changes that a stream has read, counted for whoever watches.

Each batch is counted once, when its changes are read, in the process that reads them. A batch that is run again after
a crash has the same changes, and its epoch has been counted already, unless the crash came just before; then a batch
that is completed from kept last rows may stay uncounted. Where a new checkpoint goes on from stateDir, changes that
were counted, but are not in its sink, count once more. The counts are kept in `counts.json` in stateDir; if that is
lost they begin anew, and `since` says when.

    {"version":1,"stream":"1f0c9a77","since":1772366404000000,"epoch":7,"passed_on":40,"held_back":2,
     "complete_until":1772366504000000}

Only what people are shown depends on this file, so one that cannot be understood is as good as none.
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
    """Counts of the log's changes from the moment `since` to the epoch number `epoch`; times in µs since 1970."""

    stream: str
    since: int
    epoch: int
    passed_on: int = 0
    """Changes that were emitted, as one row or as two; or left out only because they changed nothing or came late."""

    held_back: int = 0
    """Changes that were left out, because the snapshot had not come to their rows or had shown them already. Until the
    snapshot has its first row the log is not read, and nothing is counted.
    """

    complete_until: int = 0
    """The last moment up to which the stream is known to have all that was committed; 0 where none was noted."""

    def and_batch(self, epoch: int, tally: Tally) -> Counts:
        """These and the changes of the batch that ends at this epoch, unless it is counted already."""
        if epoch <= self.epoch:
            return self
        passed_on, held_back = self.passed_on + tally.passed_on, self.held_back + tally.held_back
        return replace(self, epoch=epoch, passed_on=passed_on, held_back=held_back)

    def up_to(self, epoch: int) -> Counts:
        """The same counts, but batches after this epoch are to be counted, even those that were counted already."""
        return replace(self, epoch=min(self.epoch, epoch))

    def to_text(self) -> str:
        return json.dumps({"version": COUNTS_VERSION, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Counts | None:
        """Reads what `to_text` gave; None where it is not of this version, or cannot be understood."""
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


class ChangeCounter:
    """The counts of one stream while it runs; `keep` stores them for other processes, and for the stream's next one to
    `read`.

    An OSError of `keep` is only logged, once until they are kept again.
    """

    def __init__(
        self, read: Callable[[], Counts | None] = lambda: None, keep: Callable[[Counts], None] = lambda _: None
    ) -> None:
        self._read, self._keep = read, keep
        self._counts: Counts | None = None
        self._logged_unkept = False

    def begin(self, stream: str, since: int) -> None:
        """Goes on with the counts that were kept of this stream; if there are none, counting begins at `since`."""
        if self._counts is None:
            found = self._read()
            self._counts = found if found is not None and found.stream == stream else Counts(stream, since, 0)

    def resume(self, epoch: int) -> None:
        """For a new checkpoint that goes on from the state directory: after this epoch, its batches are new ones."""
        if self._counts is not None:
            self._replace(self._counts.up_to(epoch))

    def add(self, epoch: int, tally: Tally) -> None:
        """Counts the batch that ends at this epoch, once its readers are planned."""
        if self._counts is not None:
            self._replace(self._counts.and_batch(epoch, tally))

    def complete(self, until: int | None) -> None:
        """Notes for other processes, now and then, that a stream with nothing to read is complete up to this moment;
        None is not known.

        Also where the upstream's clock was set back: else the stream would seem complete until it is that late again.
        """
        if self._counts is not None and until is not None and abs(until - self._counts.complete_until) >= NOTE_INTERVAL:
            self._replace(replace(self._counts, complete_until=until))

    def _replace(self, counts: Counts) -> None:
        self._counts = counts
        try:
            self._keep(counts)
        except OSError as error:
            if not self._logged_unkept:
                logger.warning("what has been counted is not kept: %s", error)
            self._logged_unkept = True
        else:
            self._logged_unkept = False

    def figures(self) -> dict[str, int | str]:
        return {} if self._counts is None else counted(self._counts)


def counted(counts: Counts) -> dict[str, int | str]:
    """The counts under the names by which they are shown everywhere."""
    return {
        "changes_passed_on": counts.passed_on,
        "changes_held_back": counts.held_back,
        "changes_counted_since": iso(counts.since),
    }
