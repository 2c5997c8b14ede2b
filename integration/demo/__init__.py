"""`python -m integration.demo`: a table of a million rows is back-filled while pgbench writes to it.

__main__.py   the story, from an empty folder to the proof
pgbench.py    PostgreSQL's own benchmark program: makes the table, then changes it all the while
sink.py       a DuckDB table that follows the stream, a batch at a time
watch.py      a line for each batch, and the sum of it
proof.py      whether the sink is the table
"""

from __future__ import annotations
