"""What an adapter finds in the bookmark that it made when a stream began."""

from __future__ import annotations

from backfill.errors import OffsetError
from backfill.upstream import Bookmark


def noted(bookmark: Bookmark, name: str) -> str:
    """What this name says; OffsetError where the bookmark does not have it."""
    names = dict(bookmark)
    if name not in names:
        raise OffsetError(
            f"the stream's bookmark, in the checkpoint and in stateDir, does not say its {name}: a release before the "
            "first wrote it. Start over with a fresh checkpointLocation and onExistingState=restart"
        )
    return names[name]
