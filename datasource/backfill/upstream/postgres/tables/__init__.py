"""What a table is: its columns, its key, ranges of that, and whether all this is still the same.

still_same      whether the table is still the one that the stream reads
begun           how it was when its stream began
table           the table that a stream reads
columns         whether its columns are still the same
condition       the options filter and snapshotFilter
selection       the option columns
size            about how large it is
ranges          reading ranges of keys
keys            comparing them
money           whether amounts of money mean to us what they mean to the database
catalog         what the catalog says of it
column_types    of the types of its columns
identity        of its key and of what is logged of a row before a change
untold          rows that come or go with a partition
partitions      of its partitions
dbtable         of its name

Each imports only what stands after it.
"""

from __future__ import annotations
