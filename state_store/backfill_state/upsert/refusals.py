"""Calls that every upsert state refuses as it stands. Functions of values; each refuses by raising."""

from __future__ import annotations

from typing import TypeVar

from backfill_state.errors import AnotherLayoutError, StateConflictError
from backfill_state.layout import differences
from backfill_state.upsert.state import UpsertLayout

T = TypeVar("T")


def require_extended(stored: UpsertLayout, given: UpsertLayout, where: str) -> None:
    """Refuses a state that is of another stream, or of other columns than those that the given layout begins with."""
    if not given.extends(stored):
        raise AnotherLayoutError(
            where,
            f"the upsert state belongs to another stream or has other columns ({differences(stored, given)}); give "
            "each stream its own state, and add columns after those that it has",
        )


def require_batch(batch: T | None, where: str) -> T:
    """The batch that is being written; refuses to write outside of one."""
    if batch is None:
        raise StateConflictError(
            where, "the upsert state is written in a batch only; call it inside of `with batch(...)`"
        )
    return batch


def require_no_batch(batch: object | None, where: str) -> None:
    """Refuses what would cut a batch in two."""
    if batch is not None:
        raise StateConflictError(where, "a batch is being written; end it first")


def require_consolidated(consolidating: bool, where: str) -> None:
    """Refuses to use a state of which a part is still to come."""
    if consolidating:
        raise StateConflictError(
            where,
            "the upsert state is being consolidated and a part of its output is still to come; give it the rest, or "
            "reset it to start over",
        )


def require_consolidatable(consolidating: bool, entries: int, where: str) -> None:
    """Refuses to mix output with a state that is complete."""
    if entries and not consolidating:
        raise StateConflictError(
            where, f"the upsert state is complete and holds {entries} keys; reset it to consolidate it from output"
        )
