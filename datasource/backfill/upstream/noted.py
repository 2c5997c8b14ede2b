"""Reading what an adapter has noted of a stream: its bookmark, which may be renewed, and positions."""

from __future__ import annotations

from backfill.errors import OffsetError
from backfill.upstream import Bookmark
from backfill.wording import FRESH_START


def noted(bookmark: Bookmark, name: str) -> str:
    """The value of this name; OffsetError where the bookmark lacks it."""
    names = dict(bookmark)
    if name not in names:
        raise OffsetError(
            f"the stream's bookmark, in the checkpoint and in stateDir, does not say its {name}: it was written by an "
            f"unreleased version, or is damaged. Start over with {FRESH_START}"
        )
    return names[name]


def in_own_order(bookmark: Bookmark) -> bool:
    """Whether keys may be in another order than the one that values of their types have, as an index may say."""
    return bool(dict(bookmark).get("order"))


def columns_of_last_rows(bookmark: Bookmark) -> tuple[str | None, ...]:
    """What the bookmark says of the columns of last rows: `kept`, or for a Delta table `columns`, which it had then."""
    return tuple(map(dict(bookmark).get, ("kept", "columns")))


def renewed(bookmark: Bookmark, now: Bookmark) -> Bookmark:
    """The bookmark with these values for the names in `now`, and all others as they are."""
    return tuple({**dict(bookmark), **dict(now)}.items())


def not_one(of: str, position: str) -> OffsetError:
    """The error for a text that is no position of this kind of upstream."""
    return OffsetError(
        f"the position {position!r} is not one of {of}: it is damaged, or of another upstream. Restore the checkpoint, "
        "or start with a fresh checkpointLocation"
    )
