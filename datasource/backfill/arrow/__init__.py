"""Arrow's arrays, batches and types, whatever they hold.

order       comparing keys as the database does
sameness    which values are equal
batches     record batches of a good size
arrays      selections of rows
decimals    decimals made from other values
widening    which types have all values of others

Each imports only what stands after it.
"""

from __future__ import annotations
