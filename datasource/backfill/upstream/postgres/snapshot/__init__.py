"""Reading a table as it was at one moment: at an exported snapshot, in ranges of its key.

reader       the rows, on executors
key_space    cutting the key space into vnodes
measuring    how far ranges of keys go in a pinned state
counting     how many rows they have
pin          exporting a snapshot and holding it
entering     transactions in it, or in the state of now
files        whether its rows are still there
passed_over  whether statements made before would pass over some of them
plans        by which plans the server reads them

Each imports only what stands after it.
"""

from __future__ import annotations
