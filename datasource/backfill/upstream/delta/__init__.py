"""Delta Lake as an upstream: versions as epochs, time travel as pins, the change data feed; read with `deltalake`.

adapter     the Upstream contract, composed of what follows
doctor      what would refuse a stream, before it is started
changes     the changes to a table, from its log
snapshot    a table's rows at one version
tables      what a table is, and opening it at a version
files       a table's files, and what the log and statistics say of them
keys        keys, and rows in their order
failures    what goes wrong with a table's files, as our errors
unusable    what is in a table that is not read, or not written
features    what `deltalake` calls a table's features, and Delta's SQL
position    which version of which table

Each imports only what stands after it.

A version never changes, so a pin is a version and outlives every process. Nothing is made in the table, and nothing
has to be acknowledged. The client of object stores that `deltalake` has inside tries again what may pass by itself;
so nothing is tried again here.
"""

from __future__ import annotations

import pyarrow as pa

from backfill.scarcity import importing

if int(pa.__version__.partition(".")[0]) < 24:
    raise ImportError(
        f"pyarrow is {pa.__version__}, which misreads some times in Spark's files, or cannot tell how large texts "
        "are; expected 24 or newer"
    )

with importing():  # In a task too, where Spark imports this before anything of ours runs.
    from backfill.upstream.delta.adapter import DeltaUpstream

__all__ = ["DeltaUpstream"]
