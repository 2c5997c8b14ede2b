"""What the command does, from another process than the stream's; `backfill.__main__` puts it together.

words        what the command may be asked
dropping     the end of a stream for good
examining    what would refuse a stream before it is started
requests     how a person asks for rows to be read again
display      a stream's status as lines of text
pace         how fast a stream reads
status       where a stream is

Each imports only what stands after it.
"""

from __future__ import annotations
