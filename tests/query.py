"""A query of Spark as far as a source can tell: its log of offsets, and how many of its batches are committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Generic, TypeVar

from backfill.handoff import Part
from backfill.offset import Barrier, InitialOffset, Offset, from_text, to_text
from backfill.stream import Stream

RowT = TypeVar("RowT")

read = lru_cache(maxsize=16)(from_text)
"""Reads an offset from its text; cached, because it is asked for far more often than it changes."""


class Query(ABC, Generic[RowT]):
    """One checkpoint over any number of processes of the driver."""

    offsets: list[str]
    committed: int

    @abstractmethod
    def stream(self) -> Stream:
        """Returns the source in the present process of the driver; begins one where there is none."""

    @abstractmethod
    def read(self) -> list[RowT]:
        """Returns what the tasks of the logged batch read."""

    @abstractmethod
    def commit(self, rows: list[RowT]) -> None:
        """Gives the batch to the sink, and notes it in Spark's commit log."""

    def offset(self, number: int) -> Offset:
        return read(self.offsets[number - 1]) if number else InitialOffset()

    def ask(self, max_rows: int | None = None) -> str:
        """Returns the end of the next batch, as Spark asks for it before it logs anything."""
        return to_text(self.stream().latest_offset(self.offset(self.committed), max_rows))

    def plan(self, max_rows: int | None = None, *, logged: bool = True) -> bool:
        """Logs the next batch's end, unless told not to; False where nothing is to be read. A logged batch stays."""
        if len(self.offsets) > self.committed:
            return True
        end = self.ask(max_rows)
        if end == to_text(self.offset(self.committed)):
            return False
        if logged:
            self.offsets.append(end)
        return True

    def parts(self) -> tuple[Part, ...]:
        """Returns the parts that the tasks of the logged batch get."""
        return self.stream().parts(self.offset(self.committed), read(self.offsets[-1]))

    def batch(self, max_rows: int | None = None) -> bool:
        if not self.plan(max_rows):
            return False
        self.commit(self.read())
        return True

    def catch_up(self, max_rows: int | None = None, *, most: int = 500) -> int:
        """Runs batches until nothing is left to read; returns how many."""
        for number in range(most):
            if not self.batch(max_rows):
                return number
        raise AssertionError(f"still not caught up after {most} batches")

    def barrier(self, number: int | None = None) -> Barrier:
        """Returns the end of the batch with this number, or of the last one that was committed."""
        offset = self.offset(self.committed if number is None else number)
        assert isinstance(offset, Barrier)
        return offset

    @property
    def backfilled(self) -> bool:
        return not self.barrier().progress.unfinished
