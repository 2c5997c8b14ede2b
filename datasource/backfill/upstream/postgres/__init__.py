"""PostgreSQL 14 to 19 as an upstream: exported snapshots, a logical replication slot, pgoutput decoded in vectors.

adapter        the Upstream contract, composed of what follows
doctor         what would refuse a stream, before it is started
epochs         the states that batches end at
changes        the changes to a table, from the log
snapshot       a table's rows as they were at one moment
replication    a stream's place in the log: slot and publication
tables         what a table is, and whether that is still the same
decoder        the messages of pgoutput
session        sessions on a server
values         PostgreSQL's values as Arrow's
position       which transactions a state shows
description    what the catalog says of a table, as values

Each imports only what stands after it.
"""

from __future__ import annotations

from backfill.scarcity import importing

with importing():  # In a task too, where Spark imports this before anything of ours runs.
    from backfill.upstream.postgres.adapter import PostgresUpstream

__all__ = ["PostgresUpstream"]
