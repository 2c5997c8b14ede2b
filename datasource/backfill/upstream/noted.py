"""Reading the bookmark that an adapter made when its stream began, and renewing it."""

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


def renewed(bookmark: Bookmark, now: Bookmark) -> Bookmark:
    """The bookmark with these values for the names in `now`, and all others as they are."""
    return tuple({**dict(bookmark), **dict(now)}.items())
