"""Three keys, two rows, and how much each takes."""

from __future__ import annotations

A, B, C = ("eu", 1), ("eu", 2), ("us", 1)
KEY = 2 + 8
"""The size in bytes of each of these keys."""
HEAD = 16
X, YY = ("x", 1.0), ("yy", 2.0)
SIZE_X, SIZE_YY, SIZE_GONE = HEAD + KEY + 1 + 8, HEAD + KEY + 2 + 8, HEAD + KEY
NOTHING = (None, None, None, None, (None, None))
