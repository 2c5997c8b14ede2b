"""What `backfill` tells of a stream and asks of it, from another process; `backfill.__main__` has its words.

display     a stream's status as lines of text
watching    how fast it reads
status      where it is
requests    how a person asks for rows to be read again

Each imports only what stands after it.
"""

from __future__ import annotations
