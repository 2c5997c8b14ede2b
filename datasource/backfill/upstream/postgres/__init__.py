"""PostgreSQL 14 to 19 as an upstream: exported snapshots, a logical replication slot, pgoutput decoded in vectors.

adapter     the Upstream contract, composed of what follows
connection, arrow_session, sessions    sessions and the settings that give a value one text; those of one upstream
environment  where the server is, as far as the url does not say it
failures, connecting    which errors are definite; what those mean of which the server has no word
retries, resuming    the one retry policy; reading on after a lost connection
server, catalog, dbtable, identity, selection, partitions, description, column_types    what the table is
condition    the options filter and snapshotFilter
money        whether amounts of money mean to us what they mean to the database
types, oids, values, text, array_text, flat     PostgreSQL's values as Arrow's
table, still_same, columns     the table that a stream reads, and whether that and its columns are still the same
keys, ranges, key_space     comparing keys, reading ranges of them, cutting the key space
plans        by which plans the server reads them
size, locks  about how large the table is; not waiting for long for who has locked it
measuring, counting    how far ranges of keys go
pin, entering, files, reader  exported snapshots; transactions in them; whether their rows are still there; reading them
position, epochs    which transactions a state shows; the states that batches end at
end_of_log   where the log ends, and waiting until it is flushed up to there
doctor, room    what would refuse a stream, before it is started; whether there is room for its sessions
place, slot, unseen    where a stream is in the log; the replication slot; what it does not tell of
timelines    where the log of a server parted from the one before
begun        how the table was when its stream began
blockers, standbys    whom making a slot waits for; and reading one
publication, published    the publication, and what it passes on of the table
writers      whether the table can still be written to once it is published
changelog, log, spool   a batch's changes; peeking at the slot; keeping what was found for as long as it is read
expected     how many messages to ask for
span         the changes between two places in the log, read on executors
pgoutput, messages, relation, transactions, tuples, row_changes    the decoder
"""

from __future__ import annotations

from backfill.upstream.postgres.adapter import PostgresUpstream

__all__ = ["PostgresUpstream"]
