"""Epochs: the consistent states of the upstream that batches end at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Epoch:
    """A state of the upstream that a batch ends at."""

    number: int
    """Counts the batches of a stream, from 1; `_sequence` is built on it."""

    position: str
    """The adapter's own token of the state; opaque to everything else, one text per state."""

    version: int
    """The `_commit_version` of snapshot rows that are read at this state."""

    timestamp: int
    """The moment up to which a stream that stands here is known to be complete, in microseconds since 1970 UTC by the
    upstream's clock: when the state was taken or, if that is not known, when its last commit happened. No later epoch
    has an earlier timestamp.
    """
