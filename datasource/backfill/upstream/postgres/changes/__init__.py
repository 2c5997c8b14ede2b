"""The changes to a table, from the log.

span         the changes between two places in it, read on executors
changelog    the changes of a batch
kept         what was read for a batch, until it is committed
expected     how many messages to ask for
log          peeking at the slot
spool        keeping what was found for as long as it is read

Each imports only what stands after it.
"""

from __future__ import annotations
