"""`format("backfill")`."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from backfill.errors import OptionsError
from backfill.options import parse
from backfill.spark.refusal import plainly

if TYPE_CHECKING:
    from backfill.spark.stream_reader import BackfillStreamReader

FIRST_LOOK: Final = 5.0
"""Seconds for which the database may be out of reach at `load()`, where somebody waits and may have misspelt a host."""


class BackfillDataSource(DataSource):
    """A table with all its changes. Options are described in `backfill.options` and in the README."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "backfill"

    @plainly
    def schema(self) -> StructType:
        """Spark calls this once when the DataFrame is made: here wrong options and tables are refused."""
        # Imported here because Spark imports this module in every session, also where no driver is installed.
        from backfill.opening import open_upstream  # noqa: PLC0415
        from backfill.rows import RowFormat  # noqa: PLC0415
        from backfill.spark.types import to_spark  # noqa: PLC0415

        options = parse(self.options)
        upstream = open_upstream(options, patience=FIRST_LOOK)
        try:
            return to_spark(RowFormat(upstream.schema(), options.stream.mark_unchanged).schema)
        finally:
            upstream.close()

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark passes it by name
        """Called for `spark.read`, which this source has no answer to."""
        raise OptionsError(
            "backfill is a source for streams. Use spark.readStream; with .trigger(availableNow=True) the query ends "
            "when it has caught up, and with startupMode=snapshot it gives the table's rows and nothing else"
        )

    def streamReader(self, schema: StructType) -> BackfillStreamReader:  # noqa: N802 - Spark's name
        """Called in several processes; opens nothing, and raises nothing. Spark passes `schema` by name."""
        from backfill.spark.stream_reader import BackfillStreamReader  # noqa: PLC0415

        return BackfillStreamReader(dict(self.options), schema)
