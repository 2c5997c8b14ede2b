"""Delta Lake as an upstream: versions as epochs, time travel as pins, the change data feed; read with `deltalake`.

adapter     the Upstream contract, composed of what follows
failures    what goes wrong with a table's files, as our errors
location    opening a table, at its latest version or at another one
table       what the table is: columns, key, identity, and what it may not be
types       Delta's types as Arrow's
keys, sorted_keys, measuring    values of keys as text and as SQL; in order; counting and cutting ranges of them
scan        rows of a version by key range, so many at a time
conditions  what may choose among them
statistics  which files have no such rows, and are left out
footers     how large rows are in files
passes      which key ranges are read at once
sorting     rows in the order of their key, with little memory
querying    DuckDB's SQL over rows
position    which version of which table
files       a table's files, some of which may be outside its folder
log, history    single commits of the transaction log; what they come to, and what of them is lost
deletion_vectors    which rows of a file are deleted
partitions  by which columns the table was partitioned from version to version
file_types  what a column may be in a file
change_files, feed    the rows that commits say are gone or are there, and the changes they come to
reader, span    reading a version, or the changes between two, on executors
doctor      what would refuse a stream, before it is started

A version never changes, so a pin is a version and outlives every process. Nothing is made in the table, and nothing
has to be acknowledged. The client of object stores that `deltalake` has inside tries again what may pass by itself;
so nothing is tried again here.
"""

from __future__ import annotations

import pyarrow as pa

if int(pa.__version__.partition(".")[0]) < 24:
    raise ImportError(
        f"pyarrow is {pa.__version__}, which takes some times in files of Spark for others, or cannot tell how large "
        "texts are; expected 24 or newer"
    )

from backfill.upstream.delta.adapter import DeltaUpstream

__all__ = ["DeltaUpstream"]
