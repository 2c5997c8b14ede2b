"""Sessions on a server: how they are opened, what they are set to, what goes wrong with them, and on which server.

sessions         the session in which an upstream asks and commands
resuming         reading on after a lost connection
retries          the one retry policy
room             whether there is room for a stream's sessions
server           which server this is, and what it can do
locks            not waiting long for whoever has locked the table
connection       how sessions are opened
idle_sessions    sessions that are kept for the next batch
arrow_session    a session whose rows come as Arrow
settings         what gives a value the same text in every session
environment      where the server is, and how it has to identify itself, as far as the url does not say so
failures         which errors are definite
connecting       what errors without an SQLSTATE mean

Each imports only what stands after it.
"""

from __future__ import annotations
