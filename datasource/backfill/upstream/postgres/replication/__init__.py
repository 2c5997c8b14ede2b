"""A stream's place in the log, and what PostgreSQL keeps for it: a slot and a publication.

place          where a stream is in the log
own_log        which log that is
slots          findings about the server's slots, before a stream begins
slot           the replication slot
unseen         what the slot does not tell of
standbys       the standbys that reading it waits for
publication    the publication
blockers       whom a stream waits for in the server
published      what the publication passes on of the table
writers        whether the table can still be written to once it is published
timelines      where the log of a server parted from the one before
end_of_log     where the log ends, and waiting until it is flushed up to there

Each imports only what stands after it.
"""

from __future__ import annotations
