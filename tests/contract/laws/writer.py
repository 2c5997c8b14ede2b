"""A writer at random, for tests that read an upstream meanwhile."""

from __future__ import annotations

from random import Random

from tests.contract.laboratory import Held, KeyValue, Laboratory, Rows, Write, delete, insert, move, update


class Writer:
    """Makes random transactions on random rows; some of them stay open for a while."""

    def __init__(self, random: Random, laboratory: Laboratory) -> None:
        self._random = random
        self._laboratory = laboratory
        self._rows = laboratory.rows()
        self._held: list[tuple[Held, set[KeyValue], Rows]] = []

    def write(self) -> None:
        """Makes one transaction, or holds it; before that, one that was held may end."""
        if self._held and self._random.random() < 0.5:
            self._end(self._random.randrange(len(self._held)))
        locked = {key for _, keys, _ in self._held for key in keys}
        writes, rows = self._writes(locked)
        if not writes:
            return
        if self._random.random() < 0.3 and len(self._held) < 3:
            keys = {key for write in writes for key in (write.old, write.key) if key is not None}
            after: Rows = {key: rows[key] for key in keys if key in rows}
            self._held.append((self._laboratory.hold(*writes), keys, after))
        else:
            self._laboratory.write(*writes)
            self._rows = rows

    def finish(self) -> None:
        while self._held:
            self._end(0)
        assert self._rows == self._laboratory.rows()

    def _end(self, at: int) -> None:
        held, keys, after = self._held.pop(at)
        if self._random.random() < 0.3:
            held.roll_back()
        else:
            held.commit()
            self._rows = {key: value for key, value in self._rows.items() if key not in keys} | after

    def _writes(self, locked: set[KeyValue]) -> tuple[list[Write], Rows]:
        rows = dict(self._rows)
        writes: list[Write] = []
        touched: set[KeyValue] = set(locked)
        for _ in range(self._random.randrange(1, 5)):
            write = self._one(rows, touched)
            if write is None:
                continue
            writes.append(write)
            touched |= {key for key in (write.old, write.key) if key is not None}
            if write.old is not None:
                del rows[write.old]
            if write.key is not None:
                rows[write.key] = write.value
        return writes, rows

    def _one(self, rows: Rows, touched: set[KeyValue]) -> Write | None:
        """Returns a write to keys that neither this transaction nor an open one has touched, if one is possible."""
        present = [key for key in rows if key not in touched]
        absent = [key for key in self._laboratory.keys if key not in rows and key not in touched]
        value = f"value {self._random.randrange(1000)}"
        kind = self._random.choice([insert, update, move, delete])
        if (kind is not delete and kind is not update and not absent) or (kind is not insert and not present):
            return None
        if kind is insert:
            return insert(self._random.choice(absent), value)
        if kind is move:
            return move(self._random.choice(present), self._random.choice(absent), value)
        if kind is delete:
            return delete(self._random.choice(present))
        return update(self._random.choice(present), value)
