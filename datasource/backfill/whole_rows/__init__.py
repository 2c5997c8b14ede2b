"""Changes in full, from the last row of each key: `changelog=full` and `envelope=upsert`.

last_rows    the last row of each key, from barrier to barrier
completing   changes in full, from these rows
lookup       rows that have to be looked up in the table
images       what goes forward, and what there is of each key afterwards
late         which rows come late, by the order of a column
events       the halves of changes, one after the other for each key

Each imports only what stands after it. The last four are pure: they decide, and do nothing else.
"""

from __future__ import annotations
