"""Keys, key ranges and what they cover.

A *vnode* is a numbered slice of the key space: vnode `i` of `n` holds the keys in `(bounds[i-1], bounds[i]]`, the
first reaching down to the smallest key and the last up to the largest. Hash slices, as RisingWave uses, would
make each reader scan the whole table; a slice of the key *range* is one scan of the key's own index.

Only the database knows how its keys compare (collations, numerics, enums), so the core never compares two keys.
It keeps them in the order in which the database gave them, and hands `Coverage` to the upstream when a key has to
be placed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Key: TypeAlias = tuple[str, ...]
"""A primary key: one string per key column, in key order, in the upstream's own lossless text."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys with `after < key <= upto`; None is an end that is open."""

    after: Key | None
    upto: Key | None


WHOLE_TABLE = KeyRange(None, None)

Coverage: TypeAlias = tuple[KeyRange, ...]
"""Disjoint key ranges in key order, no two of which touch."""


def merged(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """The same keys in the same order, each range joined to those after it that it touches; `ranges` are disjoint.

    Where they are in key order, the result is a `Coverage`.
    """
    result: list[KeyRange] = []
    for item in ranges:
        if result and result[-1].upto is not None and result[-1].upto == item.after:
            result[-1] = KeyRange(result[-1].after, item.upto)
        else:
            result.append(item)
    return tuple(result)


def ranges_between(bounds: Iterable[Key], within: KeyRange = WHOLE_TABLE) -> tuple[KeyRange, ...]:
    """The `n + 1` ranges that `n` ascending bounds cut `within` into; none of its keys is missing."""
    ends: list[Key | None] = [*bounds, within.upto]
    starts: list[Key | None] = [within.after, *ends[:-1]]
    return tuple(KeyRange(after, upto) for after, upto in zip(starts, ends, strict=True))
