"""Reading the bookmark that an adapter made when its stream began."""

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
