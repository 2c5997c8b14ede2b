"""What would refuse a stream before it is started, or surprise it later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from backfill.adapters import examine, open_upstream
from backfill.errors import BackfillError
from backfill.options import Options
from backfill.rows import RowFormat
from backfill.upstream.findings import Finding, refused
from backfill.whole_rows.late import require_order


def examined(options: Options) -> list[Finding]:
    """All findings of a stream with these options; those that refuse it go first."""
    return sorted((*examine(options), *_of_columns(options)), key=lambda item: not item.refuses)


def _of_columns(options: Options) -> Iterator[Finding]:
    """The findings about a table's columns that do not depend on its database."""
    try:
        with closing(open_upstream(options, patience=0.0)) as upstream:
            table = upstream.schema()
    except BackfillError:
        return  # which is among the other findings
    yield from refused(RowFormat.of, table, options.stream)
    if options.stream.order_column:
        yield from refused(require_order, table, options.stream.order_column)
