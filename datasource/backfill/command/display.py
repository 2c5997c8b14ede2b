"""A stream's status as lines of text that fit the window."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from backfill.amounts import duration, lag, moment, pace
from backfill.command.status import Pace, RowsRead, Status, VnodeState
from backfill.counts import Counts
from backfill.upstream.lag import UNKNOWN

MOST_GRID_LINES: Final = 12
WIDEST: Final = 120
_COLOURS: Final = {VnodeState.COMPLETED: "32", VnodeState.IN_PROGRESS: "33", VnodeState.NOT_STARTED: "2"}


@dataclass(frozen=True, slots=True)
class Window:
    """What the text is shown in. `plain`: only ASCII can be shown."""

    width: int
    coloured: bool = False
    plain: bool = False

    @property
    def marks(self) -> dict[VnodeState, str]:
        return dict(zip(VnodeState, ".+#" if self.plain else "·▒█", strict=True))


def drawn(of: Status, at: Pace | None, window: Window, now: float) -> str:
    """The status as text; `now` is the time in seconds since 1970."""
    return "\n".join(_lines(of, at, replace(window, width=min(window.width, WIDEST)), now))


def _lines(of: Status, at: Pace | None, window: Window, now: float) -> Iterator[str]:
    yield f"{of.table}  stream {of.stream}"[: window.width]
    yield from _wrapped(_facts(of, now), window.width)
    reading = of.reading
    if reading.vnodes:
        yield _bar(reading, window)
        if 0 < reading.vnodes_completed < len(reading.vnodes) or VnodeState.IN_PROGRESS in reading.vnodes:
            yield from _grid(reading.vnodes, window)
    if at is not None:
        yield pace(at.rows_per_second, at.seconds_left)[: window.width]
    if of.unreachable:
        yield from textwrap.wrap(f"database: {of.unreachable}", window.width)
    elif of.lag != UNKNOWN:
        yield from _wrapped(lag(of.lag.lag_bytes, of.lag.lag_seconds, of.lag.retained_bytes), window.width)
        if of.lag.lag_versions is not None:
            yield f"{of.lag.lag_versions:,} versions to read"[: window.width]
    if of.counts is not None:
        yield from _wrapped(_changes(of.counts), window.width)


def _changes(counts: Counts) -> list[str]:
    return [
        f"changes passed on {counts.passed_on:,}",
        f"held back {counts.held_back:,}",
        f"counted since {moment(counts.since)}",
    ]


def _facts(of: Status, now: float) -> list[str]:
    control = of.control.summary() if of.phase != "changes" or of.waiting else ""
    facts = [f"phase {of.phase}{f' ({control})' if control else ''}", f"{of.first.rows:,} rows read"]
    if of.again is not None:
        facts.append(f"{of.again.rows:,} rows read again")
    if of.waiting:
        facts.append(f"{of.waiting} request{'s wait' if of.waiting > 1 else ' waits'} to read rows again")
    if of.as_of is not None:
        facts.append(f"as of {moment(of.as_of)}, {duration(now - of.as_of / 1_000_000)} ago")
    return facts


def _bar(of: RowsRead, window: Window) -> str:
    total, done = len(of.vnodes), of.vnodes_completed
    text = f" {done} of {total} vnodes, {100 * done // total} %"
    cells = max(4, min(50, window.width - len(text) - 2))
    full = cells * done // total
    bar = _painted(VnodeState.COMPLETED, full, window) + _painted(VnodeState.NOT_STARTED, cells - full, window)
    return f"[{bar}]{text}"


def _grid(states: Sequence[VnodeState], window: Window) -> Iterator[str]:
    """A mark for each vnode, in key order; one mark stands for several where they would fill the window."""
    each = -(-len(states) // (window.width * MOST_GRID_LINES))
    cells = [_together(states[at : at + each]) for at in range(0, len(states), each)]
    for at in range(0, len(cells), window.width):
        line, text = cells[at : at + window.width], ""
        while line:
            same = next((place for place, cell in enumerate(line) if cell != line[0]), len(line))
            text += _painted(line[0], same, window)
            line = line[same:]
        yield text
    if each > 1:
        yield f"(each mark: {each} vnodes)"[: window.width]


def _together(states: Sequence[VnodeState]) -> VnodeState:
    return states[0] if len(set(states)) == 1 else VnodeState.IN_PROGRESS


def _painted(state: VnodeState, count: int, window: Window) -> str:
    marks = window.marks[state] * count
    return f"\x1b[{_COLOURS[state]}m{marks}\x1b[0m" if window.coloured and marks else marks


def _wrapped(facts: Sequence[str], width: int) -> Iterator[str]:
    """The facts, as many to a line as fit; one that is longer than a line is cut."""
    line = ""
    for fact in facts:
        if line and len(line) + 2 + len(fact) > width:
            yield f"{line},"[:width]
            line = ""
        line = f"{line}, {fact}" if line else fact[:width]
    yield line
