"""Reads what was stored as JSON: each value is checked where it is read, because a disk may give anything.

All functions raise TypeError or ValueError, and no message has a value in it, because keys are row values.
"""

from __future__ import annotations

import json
from typing import Final

from backfill.vnode import Key

UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, RecursionError)
"""The errors that reading JSON of some other shape may raise."""


def text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text is of type {type(value).__name__}")
    return value


def whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"a whole number is of type {type(value).__name__}")
    if value < 0:
        raise ValueError("a whole number is negative")
    return value


def key(value: object) -> Key:
    if not isinstance(value, list | tuple) or not value:
        raise TypeError("a key is not a list of texts")
    return tuple(text(part) for part in value)


def end(value: object) -> Key | None:
    """One end of a key range."""
    return None if value is None else key(value)


def require_canonical(written: object, read: object) -> None:
    """One state has one text: what would not be written again as it was read was not understood."""
    if json.dumps(written, sort_keys=True) != json.dumps(read, sort_keys=True):
        raise ValueError("it is not what this release writes for that state")
