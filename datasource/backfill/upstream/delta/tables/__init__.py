"""What a table is, and opening it at its latest version or at another one.

table       its columns, key and identity, and what it may not be
opening     where it is, and whether it is still the same
types       Delta's types as Arrow's
ways_out    what to do where it cannot be read

Each imports only what stands after it.
"""

from __future__ import annotations
