"""PostgreSQL's values as Arrow's, the same from both of its ways to send them.

conversion    a column's values on their way into Arrow, and keys on their way back
types         which Arrow type a PostgreSQL type has
array_binary  arrays from their binary form
array_text    arrays from their text
text          the text that the server writes, as Arrow's values
flat          many values, one after the other in one buffer
oids          the types' OIDs

Each imports only what stands after it.
"""

from __future__ import annotations
