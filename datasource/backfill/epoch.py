"""Epochs: the consistent states of the upstream that batches end at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Epoch:
    """A state of the upstream that a batch ends at."""

    number: int
    """Counts the batches of a stream, from 1; what `_sequence` is built on."""

    position: str
    """The adapter's own token of the state; opaque to everything else, one text per state."""

    version: int
    """The state as `_commit_version` of the snapshot rows read at it."""

    timestamp: int
    """Up to when a stream that stands here is known to be complete, in microseconds since 1970 UTC by the upstream's
    clock: the moment at which the state was taken, else that of its last commit. No later epoch has an earlier one.
    """
