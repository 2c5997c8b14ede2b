"""Reading a table as it was at one moment: at an exported snapshot, in ranges of its key.

reader       the rows, on executors
key_space    cutting the key space into vnodes
measuring    how far ranges of keys go in a pinned state
counting     how many rows ranges of keys have
pin          exporting a snapshot and holding it
entering     transactions in a snapshot, or in the present state
files        whether the table's rows are still there
passed_over  whether statements made before would pass over some rows
plans        by which plans the server reads rows

Each imports only what stands after it.
"""

from __future__ import annotations
