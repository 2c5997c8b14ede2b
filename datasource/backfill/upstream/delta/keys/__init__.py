"""Keys, and rows in their order.

sorted_keys    counting and cutting ranges of keys, and what a key may not be
columns        values of keys as text and as SQL; whether they lie in a range
sorting        rows in the order of some columns, with little memory

Each imports only what stands after it.
"""

from __future__ import annotations
