"""What a table is: its columns, its key, ranges of that, and whether all this is still the same.

still_same          whether the table is still the one that the stream reads
baseline            how the table was when its stream began
table               the table that a stream reads
columns             whether its columns are still the same
condition           the options filter and snapshotFilter
selection           the option columns
size                about how large it is
ranges              reading ranges of keys
keys                comparing keys
money               whether amounts of money mean to us what they mean to the database
catalog             what the catalog says of the table
column_types        what it says of the types of columns
identity            what it says of the key, and of what is logged of a row before a change
partition_warnings  rows that come or go with a partition
partitions          what the catalog says of the table's partitions
dbtable             what it says of the table's name

Each imports only what stands after it.
"""

from __future__ import annotations
