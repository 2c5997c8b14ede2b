"""Where batches may end: states of the database that readers can look at, or places in its change log.

steps      from one epoch to the next, whichever is asked for
pinned     to a state that readers are pinned to
followed   to a place in the log alone
reading    what was read of the log on the way, and what is known by that

Each imports only what stands after it.
"""

from __future__ import annotations
