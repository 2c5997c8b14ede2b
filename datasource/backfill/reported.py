"""Where a stream is, from what its source says in Spark's `StreamingQueryProgress`: a value, and how it is shown."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from backfill.amounts import lag, pace, size
from backfill.progress import Phase

CELLS: Final = 40


@dataclass(frozen=True, slots=True)
class SourceReport:
    """What the source of one table reported last; None for what it left out.

    It reports when it has planned where a batch ends. The figures take that batch as already read, except for the
    counts of changes, which are those of the batches before it.
    """

    table: str
    phase: Phase
    control: str = ""
    control_rows: int | None = None
    """How many rows of the table a batch may read under `control`, 0 for none; None for no limit."""

    snapshot_rows: int = 0
    snapshot_rows_left: int | None = None
    """A guess: the vnodes that are left hold as many rows as the others did."""

    vnodes: int = 0
    vnodes_completed: int = 0
    again_rows: int | None = None
    """This and the two below are about the rows that are being read again, or were read again last."""

    again_vnodes: int | None = None
    again_vnodes_completed: int | None = None
    changes_passed_on: int | None = None
    changes_held_back: int | None = None
    changes_counted_since: str | None = None
    lag_bytes: int | None = None
    lag_seconds: int | None = None
    retained_bytes: int | None = None
    state_rows: int | None = None
    state_row_bytes: int | None = None
    state_file_bytes: int | None = None
    state_memory_bytes: int | None = None

    @classmethod
    def of(cls, latest_offset: str | None) -> SourceReport | None:
        """Reads the text that Spark gives as a source's latest offset; None where it is of another kind of source."""
        try:
            found = json.loads(latest_offset or "null")
        except ValueError:
            return None
        if not isinstance(found, Mapping) or not {"table", "phase"} <= found.keys():
            return None
        return cls(**{name: found[name] for name in cls.__slots__ if name in found})

    @property
    def reading(self) -> tuple[int, int]:
        """Of what is being read, or was read last: how many vnodes are completed, and how many there are."""
        if self.phase == "again":
            return self.again_vnodes_completed or 0, self.again_vnodes or 0
        return self.vnodes_completed, self.vnodes


def distinctly_named(sources: Iterable[SourceReport]) -> list[SourceReport]:
    """The same, with a number where a table's name comes again: the second `"public"."t"` is `"public"."t"#2`.

    Tables of several databases may have one name, and a query may load one table twice.
    """
    met: Counter[str] = Counter()
    found = []
    for report in sources:
        met[report.table] += 1
        number = met[report.table]
        found.append(report if number == 1 else replace(report, table=f"{report.table}#{number}"))
    return found


@dataclass(frozen=True, repr=False, slots=True)
class StreamProgress:
    """Where a stream is, as far as Spark has been told; shown as text and, in notebooks, as HTML."""

    query: str
    """The query's name, or its id where it has none."""

    active: bool
    batch: int | None
    """The last batch that has ended; None before the first."""

    reported: SourceReport | None
    """What the source reported when that batch was planned; where it was run again after a restart, what it reported of
    an earlier one. None until the first batch that this query planned has ended.
    """

    rows_per_second: float | None = None
    """How fast the snapshot has been read lately; None where it was not."""

    lag_seconds: float | None = None
    """How many seconds ago it was that the stream had everything; 0 if the last look found nothing new."""

    @property
    def phase(self) -> Phase:
        return "starting" if self.reported is None else self.reported.phase

    @property
    def seconds_left(self) -> float | None:
        """About how long reading the rest of the table takes at this pace."""
        if self.reported is None or self.reported.snapshot_rows_left is None or not self.rows_per_second:
            return None
        return self.reported.snapshot_rows_left / self.rows_per_second

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        head, *rows = (html.escape(line) for line in self._lines(bar=False))
        completed, vnodes = (0, 0) if self.reported is None else self.reported.reading
        bar = f'<progress value="{completed}" max="{vnodes}"></progress><br>' if vnodes else ""
        return f"<div><b>{head}</b><br>{bar}{'<br>'.join(rows)}</div>"

    def _lines(self, *, bar: bool = True) -> Iterator[str]:
        of = self.reported
        ended = "" if self.active else ", ended"
        if of is None:
            yield f"query {self.query}{ended}"
            yield "phase starting: no batch has been planned and ended yet"
            return
        batch = "" if self.batch is None else f", batch {self.batch}"
        yield f"{of.table}  query {self.query}{batch}{ended}"
        yield _facts(of)
        completed, vnodes = of.reading
        if vnodes:
            full = CELLS * completed // vnodes
            done = f"{completed} of {vnodes} vnodes, {100 * completed // vnodes} %"
            yield f"[{'█' * full}{'·' * (CELLS - full)}] {done}" if bar else done
        if self.rows_per_second is not None:
            yield pace(self.rows_per_second, self.seconds_left)
        figures = lag(of.lag_bytes, self.lag_seconds, of.retained_bytes)
        if figures:
            yield ", ".join(figures)
        if of.changes_passed_on is not None:
            counted = f"changes passed on {of.changes_passed_on:,}, held back {of.changes_held_back or 0:,}"
            yield f"{counted}, counted since {of.changes_counted_since}"
        if of.state_rows is not None:
            yield f"last rows of {of.state_rows:,} keys, file {size(of.state_file_bytes or 0)}"


def _facts(of: SourceReport) -> str:
    control = f" ({of.control})" if of.control else ""
    left = "" if not of.snapshot_rows_left else f", about {of.snapshot_rows_left:,} to go"
    again = "" if of.again_rows is None else f", {of.again_rows:,} rows read again"
    return f"phase {of.phase}{control}, {of.snapshot_rows:,} rows read{left}{again}"
