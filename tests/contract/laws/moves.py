"""Short names for what the laws do with an upstream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random

from backfill.epoch import Epoch
from backfill.plan import Measure
from backfill.upstream import LATEST, ChangeReader, Pin, Upstream
from backfill.vnode import WHOLE_TABLE, Key, KeyRange
from tests.contract.laboratory import Commit, KeyValue, Laboratory, Rows, applied, commits_of, insert, rows_of

UNLIMITED = 1 << 62
STREAM = "laws0001"


def begun(laboratory: Laboratory) -> Upstream:
    """Opens an adapter and makes its place in the log."""
    upstream = laboratory.open()
    upstream.attach(upstream.bookmark(STREAM), None)
    return upstream


def reopened(laboratory: Laboratory, after: Epoch) -> Upstream:
    """Opens an adapter in a new process, which finds its place again."""
    upstream = laboratory.open()
    upstream.attach(upstream.bookmark(STREAM), after)
    return upstream


def now_and_then(laboratory: Laboratory, upstream: Upstream, after: Epoch) -> Iterator[Upstream]:
    """Yields the adapter of this process, and then that of a new process after it."""
    yield upstream
    yield reopened(laboratory, after)


def fill(laboratory: Laboratory, count: int = 40) -> None:
    """Inserts rows under the first `count` keys, in no order."""
    keys = list(laboratory.keys[:count])
    Random(count).shuffle(keys)
    laboratory.write(*[insert(key, f"at first {number}") for number, key in enumerate(keys)])


def pinned(upstream: Upstream, after: Epoch | None = None) -> Pin:
    """Pins a state that snapshot rows can be read at."""
    step = upstream.snapshot_epoch(after, max_changes=UNLIMITED)
    assert step.pin is not None
    assert step.pin.epoch == step.epoch
    return step.pin


def followed(upstream: Upstream, after: Epoch, *, most: int = UNLIMITED, until: str | None = None) -> Epoch:
    """Returns the next epoch of a stream that only follows changes."""
    step = upstream.log_epoch(after, max_changes=most, until=until)
    assert step.pin is None
    return step.epoch


def held(upstream: Upstream, after: Epoch, *, most: int = UNLIMITED) -> Epoch:
    """Returns the next epoch of a stream whose snapshot is held."""
    step = upstream.held_epoch(after, max_changes=most)
    assert step.pin is None
    return step.epoch


def read(
    upstream: Upstream, pin: Pin, ranges: Sequence[KeyRange] = (WHOLE_TABLE,)
) -> list[tuple[KeyValue, str | None]]:
    return rows_of(upstream.reader().read(pin.token, ranges), upstream.schema())


def commits(upstream: Upstream, after: Epoch, upto: Epoch) -> list[Commit]:
    return commits_of(upstream.changes(after, upto), upstream.schema())


def now(laboratory: Laboratory) -> str:
    """Returns the position of this moment, as a person may name it."""
    return span(laboratory, LATEST, LATEST).after


def span(laboratory: Laboratory, starting: str, ending: str) -> ChangeReader:
    """Returns a reader of the changes between two positions."""
    upstream = laboratory.reading(laboratory.open().bookmark(STREAM))
    reader = upstream.span(starting, ending)
    upstream.close()
    return reader


def spanned(laboratory: Laboratory, starting: str, ending: str = LATEST) -> list[Commit]:
    return commits_of(span(laboratory, starting, ending).read(), laboratory.open().schema())


def led(rows: Rows, by: Iterable[Commit]) -> Rows:
    for commit in by:
        rows = applied(rows, commit)
    return rows


def key_text(upstream: Upstream, pin: Pin, place: int) -> Key:
    """Returns the key's text of the row at this place in the pinned state, counted from 0; not for the last row."""
    (extent,) = upstream.measure(pin, [Measure(WHOLE_TABLE, place + 1)])
    assert extent.last is not None
    return extent.last


def in_order(laboratory: Laboratory, rows: Rows) -> list[tuple[KeyValue, str | None]]:
    return [(key, rows[key]) for key in laboratory.keys if key in rows]
