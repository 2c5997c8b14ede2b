"""Laws of what an upstream says about its table and itself."""

from __future__ import annotations

from dataclasses import astuple

from tests.contract.laboratory import VALUE, Laboratory, insert
from tests.contract.laws.moves import begun, commits, fill, followed, pinned, read, reopened


class TableLaws:
    def test_the_schema_names_the_key_in_its_order_and_the_columns_of_every_row(self, laboratory: Laboratory) -> None:
        fill(laboratory)
        upstream = begun(laboratory)
        schema = upstream.schema()
        assert len(schema.key) == len(laboratory.keys[0])
        assert sorted(schema.columns.names) == sorted([*schema.key, VALUE])
        assert set(schema.output) <= set(schema.columns.names)
        assert [field.name for field in schema.key_schema] == list(schema.key)
        assert [key for key, _ in read(upstream, pinned(upstream))] == list(laboratory.keys[:40])

    def test_the_table_is_the_same_one_to_every_process(self, laboratory: Laboratory) -> None:
        assert laboratory.open().identity() == laboratory.open().identity()
        assert laboratory.open().schema() == laboratory.open().schema()

    def test_the_size_is_a_guess_that_can_be_divided_by(self, laboratory: Laboratory) -> None:
        for count in (0, 40):
            fill(laboratory, count)
            size = begun(laboratory).size()
            assert size.row_count >= 1
            assert size.row_bytes >= 1

    def test_the_lag_is_known_in_whole_numbers(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        known = [figure for figure in astuple(upstream.lag(pinned(upstream).epoch)) if figure is not None]
        assert known
        assert all(type(figure) is int and figure >= 0 for figure in known)

    def test_closing_may_be_done_again_and_loses_nothing(self, laboratory: Laboratory) -> None:
        upstream = begun(laboratory)
        epoch = pinned(upstream).epoch
        upstream.close()
        upstream.close()
        laboratory.write(insert(laboratory.keys[0]))
        upstream = reopened(laboratory, epoch)
        assert [commit.writes for commit in commits(upstream, epoch, followed(upstream, epoch))] == [
            (insert(laboratory.keys[0]),)
        ]
