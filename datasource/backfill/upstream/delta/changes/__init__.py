"""The changes to a table, from its log.

span          those between two versions, read on executors
history       what became of the table from version to version, and what of that is lost
feed          the changes that rows which are gone and rows which are there come to
rows          these rows, from the files of commits
chosen        some rows of a file, by their places
partitions    by which columns the table was partitioned from version to version
file_types    what a column may be in a file

Each imports only what stands after it.
"""

from __future__ import annotations
