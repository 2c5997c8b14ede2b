"""`format("backfill")` and `USING backfill`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from backfill.errors import OptionsError
from backfill.options import Options, parse, parse_view, reads_changes
from backfill.spark.refusal import without_traceback

if TYPE_CHECKING:
    import pyarrow as pa

    from backfill.spark.stream_reader import BackfillStreamReader

FIRST_LOOK: Final = 5.0
"""Seconds for which the database may be out of reach at `load()`, where somebody waits and may have misspelt a host."""

READ_ONLY: Final = (
    "backfill is a source; nothing can be written through it, nor into a table USING backfill. Write a stream into "
    "another table with foreachBatch and apply_to of backfill.sinks.postgres or backfill.sinks.delta, and other rows "
    "with another format, such as jdbc or delta"
)


class BackfillDataSource(DataSource):
    """A table with all its changes. Options are described in `backfill.options` and in the README.

    Spark's drivers import this module in every session, also where no database driver is installed; so what needs
    more than the options is imported where it is needed.
    """

    @classmethod
    def name(cls) -> str:
        return "backfill"

    @without_traceback
    def schema(self) -> StructType:
        """Spark calls this once when the DataFrame or table is made: here wrong options and tables are refused.

        It does not say whether a stream or a batch will be read. Only a stream has a `stateDir`, and only a read of
        changes a `startingPosition`, so these decide whether the columns are those of a stream or the table's alone.
        """
        from backfill.spark import table_options  # noqa: PLC0415
        from backfill.spark.types import to_spark  # noqa: PLC0415

        made_with = table_options.of_new_table(self.options)
        if made_with is None:
            # With stateDir this may be for a stream; the reader of a batch asks again.
            asked = () if self.options.get("statedir") else self.options
            return to_spark(_columns(self.options, asked=asked))
        return table_options.carrying(to_spark(_columns(made_with, asked=())), made_with)

    @without_traceback
    def reader(self, schema: StructType) -> DataSourceReader:
        """Called for `spark.read` and SELECT; Spark passes `schema` by name."""
        from backfill.spark import table_options  # noqa: PLC0415

        given = table_options.of_table(schema, self.options)
        view = parse_view(given)
        if view is not None:
            from backfill.spark.view_reader import ViewReader  # noqa: PLC0415

            return ViewReader(*view, schema)
        from backfill.spark.batch_reader import BackfillBatchReader  # noqa: PLC0415
        from backfill.spark.span_reader import SpanReader  # noqa: PLC0415

        if reads_changes(given):
            return SpanReader(given, schema, asked=frozenset(self.options))
        return BackfillBatchReader(given, schema, asked=frozenset(self.options))

    def streamReader(self, schema: StructType) -> BackfillStreamReader:  # noqa: N802 - Spark's name
        """Called in several processes; opens nothing, and raises nothing. Spark passes `schema` by name."""
        from backfill.spark.stream_reader import BackfillStreamReader  # noqa: PLC0415

        return BackfillStreamReader(dict(self.options), schema)

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002 - Spark's signature
        """Called for `df.write`, INSERT INTO and CREATE TABLE … AS SELECT."""
        raise OptionsError(READ_ONLY)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802
        """Called for `writeStream`."""
        raise OptionsError(READ_ONLY)


def _columns(given: Mapping[str, str], *, asked: Collection[str]) -> pa.Schema:
    view = parse_view(given)
    if view is not None:
        from backfill.state_dir.views import look  # noqa: PLC0415

        return look(*view).schema
    return _table_columns(parse(given, asked=asked))


def _table_columns(options: Options) -> pa.Schema:
    from backfill import span  # noqa: PLC0415
    from backfill.adapters import open_upstream  # noqa: PLC0415
    from backfill.rows import RowFormat  # noqa: PLC0415

    with closing(open_upstream(options, patience=FIRST_LOOK)) as upstream:
        table = upstream.schema()
        if options.starting_position and not options.state_dir:
            # Wrong positions are refused before anything is planned. With stateDir this may be for a stream, which
            # refuses all positions.
            span.changes_of(upstream, options)
    if options.has_metadata:
        return RowFormat.of(table, options.stream).schema
    return table.output_columns
