"""PostgreSQL 14 to 18 as an upstream: exported snapshots, a logical replication slot, pgoutput decoded in vectors.

adapter     the Upstream contract, composed of what follows
connection  sessions and the settings that give a value one text
failures    which errors are definite, and the one retry policy
server, catalog, lookup, identity, selection, description, column_types    what the table is
types, values, text, array_text, flat     PostgreSQL's values as Arrow's
keys, ranges, table     comparing keys, reading ranges of them, cutting the key space
pin, files, reader  exported snapshots, whether their rows are still there, and reading them on executors
position     which transactions a state shows
doctor       what would refuse a stream, before it is started
slot         the replication slot and the publication
log, spool   peeking at the slot; keeping what was found until the batch is planned
pgoutput, messages, relation, transactions, tuples, row_changes    the decoder
"""

from __future__ import annotations

from backfill.upstream.postgres.adapter import PostgresUpstream

__all__ = ["PostgresUpstream"]
