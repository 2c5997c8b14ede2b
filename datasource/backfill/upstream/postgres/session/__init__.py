"""Sessions on a server: how they are opened, what they are set to, what goes wrong with them, and on which server.

sessions         the one in which an upstream asks and commands
resuming         reading on after a lost connection
retries          the one retry policy
room             whether there is room for a stream's sessions
server           which server this is, and what it can do
locks            not waiting for long for who has locked the table
connection       how they are opened
idle_sessions    those that are kept for the next batch
arrow_session    one whose rows come as Arrow
settings         what gives a value one text in each of them
environment      where the server is, and how it has to prove that, as far as the url does not say it
failures         which errors are definite
connecting       what those mean of which the server has no word

Each imports only what stands after it.
"""

from __future__ import annotations
