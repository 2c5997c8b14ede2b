"""Reading a table as it was at one version, in ranges of its key.

reader        the rows, on executors
measuring     how many keys ranges hold, and where to cut them
rows          rows by key range, so many at a time
passes        which ranges are read at once
conditions    which conditions on rows are allowed, and which rows they choose
sizes         how large rows are
pieces        batches in pieces that are not too large
scan          rows as `deltalake` reads them
querying      DuckDB's SQL over rows

Each imports only what stands after it.
"""

from __future__ import annotations
