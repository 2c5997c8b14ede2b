"""The messages of pgoutput, decoded in vectors.

pgoutput        from messages to the changes of a table
namesakes       other tables that had its name
row_changes     the messages that have rows
tuples          the values in those rows
transactions    which messages belong to which transaction
relation        what a table looked like when its rows were logged
messages        where each message begins and what it is

Each imports only what stands after it.
"""

from __future__ import annotations
