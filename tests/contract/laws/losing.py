"""Laws of an upstream that may be told to go on although changes were lost."""

from __future__ import annotations

from backfill.epoch import Epoch
from backfill.upstream import Bookmark, Upstream
from tests.contract.laboratory import LosingLaboratory, Write, delete, update
from tests.contract.laws.moves import STREAM, begun, commits, fill, followed, pinned, read


def forgiven(laboratory: LosingLaboratory, *lost: Write) -> tuple[Upstream, Bookmark, Epoch]:
    """Loses these writes, and all else after the epoch of a stream of ten rows, which a new process goes on with.

    Returns that process's adapter, the bookmark to go on with, and the epoch.
    """
    fill(laboratory, 10)
    upstream = begun(laboratory)
    bookmark, epoch = upstream.bookmark(STREAM), pinned(upstream).epoch
    if lost:
        laboratory.write(*lost)
    laboratory.lose_changes(bookmark)
    upstream = laboratory.open_forgiving()
    return upstream, upstream.attach(bookmark, epoch), epoch


class LosingUpstreamLaws:
    """Laws of an upstream that may be told to go on although changes were lost."""

    def test_a_stream_that_goes_on_without_lost_changes_leaves_them_behind_for_good(
        self, laboratory: LosingLaboratory
    ) -> None:
        keys = laboratory.keys
        upstream, bookmark, epoch = forgiven(laboratory, delete(keys[0]))
        later = followed(upstream, epoch)
        assert later != epoch or not upstream.has_gap_after(epoch)
        assert not upstream.has_gap_after(later)
        upstream = laboratory.open()
        upstream.attach(bookmark, later)
        assert not upstream.has_gap_after(later)
        laboratory.write(update(keys[1]))
        (commit,) = commits(upstream, later, followed(upstream, later))
        assert commit.writes == (update(keys[1]),)

    def test_rows_are_read_as_they_are_after_changes_were_lost(self, laboratory: LosingLaboratory) -> None:
        upstream, _, epoch = forgiven(laboratory, delete(laboratory.keys[0]))
        pin = pinned(upstream, epoch)
        assert dict(read(upstream, pin)) == laboratory.rows()
        assert not upstream.has_gap_after(pin.epoch)

    def test_a_stream_that_was_told_once_may_end_where_nothing_more_is_lost(self, laboratory: LosingLaboratory) -> None:
        upstream, bookmark, epoch = forgiven(laboratory)
        until = upstream.present()
        is_over = upstream.reached(epoch, until) and not upstream.has_gap_after(epoch)
        last = epoch if is_over else followed(upstream, epoch, until=until)
        upstream = laboratory.open()
        upstream.attach(bookmark, last)
        assert not upstream.has_gap_after(last)
