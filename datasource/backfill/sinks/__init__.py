"""Keyed targets that follow a stream: functions for `foreachBatch` that apply each batch once.

postgres        a table of PostgreSQL
delta           a Delta table
batch           what a sink is given
compacted       from a batch to the last row of each key
delta_columns   whether such a table has a batch's columns
fitted          these rows in the types of a Delta table
merge_source    these rows as the source of a MERGE
spark_times     files that a MERGE must not write anew
restored        whether a RESTORE took batches out of such a table
applied         whether a batch has been applied already

They know Spark's DataFrame only by its method `toArrow`.
"""

from __future__ import annotations
