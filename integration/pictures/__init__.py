"""`python -m integration.pictures`: makes the README's pictures of `backfill status --watch` from a real run.

__main__.py   a table of a million rows is back-filled while pgbench writes to it, and looked at in two windows
terminal.py   a window of tmux, and what it shows as SVG
"""

from __future__ import annotations
