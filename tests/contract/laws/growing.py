"""Laws of an upstream whose table may get a column while a stream follows it."""

from __future__ import annotations

from tests.contract.laboratory import GrowingLaboratory
from tests.contract.laws.moves import STREAM, begun, fill, pinned


class GrowingUpstreamLaws:
    """Laws of an upstream whose table may get a column while a stream follows it."""

    def test_rows_of_before_lack_exactly_the_columns_that_the_table_has_got(
        self, laboratory: GrowingLaboratory
    ) -> None:
        fill(laboratory, 3)
        upstream = begun(laboratory)
        before, bookmark, epoch = upstream.schema().columns.names, upstream.bookmark(STREAM), pinned(upstream).epoch
        assert not upstream.added().lacked_by(before)
        laboratory.add_column("further")
        upstream = laboratory.open()
        upstream.attach(bookmark, epoch)
        assert upstream.added().lacked_by(before) == {"further"}
        assert not upstream.added().lacked_by(upstream.schema().columns.names)
