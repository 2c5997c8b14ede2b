"""What a table is, and opening it at its latest version or at another one.

latest        which version is the latest one, and whether it still is
opening       the table at a version, and whether it is still the same one
table         its columns, key and identity
properties    its features and properties: which are refused
types         Delta's types as Arrow's
ways_out      what to do where it cannot be read

Each imports only what stands after it.
"""

from __future__ import annotations
