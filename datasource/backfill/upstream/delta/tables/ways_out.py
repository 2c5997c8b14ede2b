"""What is to be done where a version of the table cannot be read, or not any more."""

from __future__ import annotations

from typing import Final

from backfill.wording import FRESH_START

START_OVER: Final = f"Start over with {FRESH_START}"

PAST_IT: Final = (
    f"a stream starts over with {FRESH_START}, and a read of changes begins after that version (startingPosition)"
)
"""What is left to do where the log has changes of a version that cannot be carried."""

GO_ON: Final = (
    "Start the query again, which carries the present columns; if that is refused because of an earlier version, "
    f"start over with {FRESH_START}"
)
"""What a stream can do where a version has other columns."""

KEEP_LONGER: Final = (
    "to keep more for a stream that is stopped: ALTER TABLE … SET TBLPROPERTIES ('delta.logRetentionDuration' = "
    "'interval 60 days', 'delta.deletedFileRetentionDuration' = 'interval 60 days')"
)

WITHOUT_CHANGES: Final = (
    f"{START_OVER}, or start the query again with failOnDataLoss=false to go on without; {KEEP_LONGER}"
)
"""What a stream can do about changes that are lost."""

REPAIR: Final = (
    "Start the query again; if they are missing in the latest version too, restore them, or let "
    "DeltaTable(…).repair() of the package deltalake remove them from the table"
)
"""What can be done about files of the version that was the latest just now."""
