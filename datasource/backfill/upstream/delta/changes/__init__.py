"""The changes to a table, from its log.

span           the changes between two versions, read on executors
history        what became of the table from version to version, and what of that is lost
feed           changes, from the rows that are gone and those that are there
rows           these rows, from the files of commits
row_selection  some rows of a file, by their places
partitions     by which columns the table was partitioned from version to version
file_types     what a column may be in a file

Each imports only what stands after it.
"""

from __future__ import annotations
