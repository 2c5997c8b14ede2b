"""The options that a stream keeps to its end: noted in its bookmark, which the checkpoint and stateDir have."""

from __future__ import annotations

from typing import Final

from backfill.errors import OptionsError
from backfill.options import StreamOptions
from backfill.upstream import Bookmark
from backfill.wording import another_option

# Their names in the bookmark; options that a stream does not have are not there.
SNAPSHOT_FILTER: Final = "snapshot_filter"
ONLY_SNAPSHOT: Final = "only_snapshot"
ORDER_COLUMN: Final = "order_column"


def with_options(bookmark: Bookmark, options: StreamOptions) -> Bookmark:
    """The bookmark with what the options say now."""
    kept = {
        SNAPSHOT_FILTER: options.snapshot_filter,
        ONLY_SNAPSHOT: "true" if options.only_snapshot else "",
        ORDER_COLUMN: options.order_column,
    }
    others = (item for item in bookmark if item[0] not in kept)
    return (*others, *((name, value) for name, value in kept.items() if value))


def has_place(bookmark: Bookmark) -> bool:
    """Whether something was made for the stream in the upstream's change log."""
    return not dict(bookmark).get(ONLY_SNAPSHOT)


def keeps_the_latest(bookmark: Bookmark) -> bool:
    """Whether the sink may have a later row of a key than the table, by the stream's orderColumn."""
    return bool(dict(bookmark).get(ORDER_COLUMN))


def require_same_options(bookmark: Bookmark, options: StreamOptions, *, order_matters: bool) -> None:
    """Raises OptionsError where the stream began with others; its orderColumn is checked by the last rows themselves.

    A stream that follows changes has a place in the change log, and one that is a snapshot alone has none. A chunk that
    was planned with one filter must not be read with another. A filter may be left out once the order of keys no longer
    matters to what is left to do.
    """
    if has_place(bookmark) == options.only_snapshot:
        raise OptionsError(another_option(_mode(not options.only_snapshot), _mode(options.only_snapshot)))
    before, now = dict(bookmark).get(SNAPSHOT_FILTER, ""), options.snapshot_filter
    if before != now and (now or order_matters):
        raise OptionsError(another_option(_filter(before), _filter(now)))


def _mode(only_snapshot: bool) -> str:
    return "startupMode=snapshot" if only_snapshot else "another startupMode"


def _filter(snapshot_filter: str) -> str:
    return f"snapshotFilter={snapshot_filter!r}" if snapshot_filter else "no snapshotFilter"
