"""How fast the connector is, measured beside what else reads the same rows.

    python -m benchmarks [snapshot|orders|vectors|wide|changes|wide-changes|full|staging|memory|distance|freshness|
                          upsert|all] [--rows N] [--rounds N] [--patience S] [--java=OPTIONS] [--json]

Machines drift: the same program may take twice as long a minute later. So the contenders take turns, round after
round and every second round backwards, and what counts is the *ratio* of two runs of the same round; tables show its
median and its range. On a machine that others use too, `--patience` lets every run wait until it is idle.

rounds.py        contenders that take turns, and the ratios of their times
report.py        a table, as text or JSON
bed.py           a PostgreSQL on this machine, with the tables that are read, and a Spark beside it
stream.py        runs a stream until nothing is left to read, and takes the times Spark reports
snapshot.py      accounts, orders or wide rows into Spark's noop sink; beside psql's COPY and Spark's own JDBC source
handing_over.py  rows that are in memory already, as one more contender there: what Spark's own part takes
debezium.py      Debezium's engine, as one more contender in snapshot and changes where it is installed
changes.py       a backlog of changes into the noop sink; beside a bare peek at the same slot
full.py          what whole rows before and after each change cost
staging.py       what keeping the chunks costs
memory.py        how large the driver's Python process gets while much is waiting
distance.py      how often a stream waits for its database, and for how long where that is far away
freshness.py     how long after its commit a change is in a sink
upsert.py        what a batch costs in an upsert state, by the number of keys in the state
rocks.py         RocksDB, as one more contender there where it is installed
"""

from __future__ import annotations
