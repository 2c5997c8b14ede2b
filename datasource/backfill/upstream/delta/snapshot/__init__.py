"""Reading a table as it was at one version, in ranges of its key.

reader        the rows, on executors
measuring     how many keys ranges hold, and where to cut them
conditions    what may choose among rows
scan          rows by key range, so many at a time
passes        which ranges are read at once
querying      DuckDB's SQL over rows

Each imports only what stands after it.
"""

from __future__ import annotations
