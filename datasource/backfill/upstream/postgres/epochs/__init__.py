"""Where batches may end: states of the database that readers can look at, or places in its change log.

steps      from one epoch to the next, of whichever kind is asked for
pinned     epochs that readers are pinned to
followed   epochs that are found by the log alone
reading    reading the log on the way, and what is known by that

Each imports only what stands after it.
"""

from __future__ import annotations
