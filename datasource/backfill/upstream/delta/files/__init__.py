"""A table's files: where they are, what the log and its statistics say of them, and what they say themselves.

log                 the transaction log, commit by commit
commits             what a commit did
deletion_vectors    which rows of a file are deleted
statistics          which files are left out, as they have no such keys
footers             how large rows are in files
column_names        what columns are called in files
location            where files are, some of which may be outside the table's folder

Each imports only what stands after it.
"""

from __future__ import annotations
