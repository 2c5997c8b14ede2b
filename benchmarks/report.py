"""A table of results, as text or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.rounds import Results, Spread


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ratio to be shown, and what it should be at least."""

    name: str
    to: str
    least: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title, and below it what one has to know to read them."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: Sequence[str] = ()
    values: dict[str, Any] = field(default_factory=dict)
    """The same as numbers."""

    def to_text(self) -> str:
        widths = [max(len(row[at]) for row in [self.header, *self.rows]) for at in range(len(self.header))]
        lines = [self.title, ""]
        for row in (self.header, tuple("-" * width for width in widths), *self.rows):
            first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join([row[0].ljust(len(first)), *rest]).rstrip())
        return "\n".join([*lines, "", *self.notes, ""])

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "notes": list(self.notes), **self.values}


def speeds(title: str, results: Results, notes: Sequence[str] = (), *, unit: str = "rows") -> Table:
    """How fast each contender was."""
    found = {name: results.speed(name) for name in results.runs}
    return Table(
        title,
        ("contender", f"1000 {unit}/s", "range"),
        [(name, f"{speed.median / 1000:.0f}", between(speed, 1 / 1000, 0)) for name, speed in found.items()],
        notes,
        {name: asdict(speed) for name, speed in found.items()},
    )


def ratios(title: str, results: Results, comparisons: Sequence[Comparison]) -> Table:
    """How many times as fast one contender was as another."""
    rows, values = [], []
    for item in comparisons:
        found = results.ratio(item.name, item.to)
        target = "" if item.least is None else f">= {item.least:g}"
        met = "" if item.least is None else ("yes" if found.median >= item.least else "no")
        rows.append((f"{item.name} : {item.to}", f"{found.median:.2f}", between(found, 1, 2), target, met))
        values.append({**asdict(item), "ratio": asdict(found)})
    return Table(title, ("speed of", "ratio", "range", "target", "met"), rows, values={"ratios": values})


def where(title: str, results: Results, parts: Sequence[str]) -> Table:
    """Where the time of the contenders went, for those that tell: medians, in milliseconds."""
    divided = [name for name, runs in results.runs.items() if set(parts) <= set(runs[0].parts)]
    found = {name: {part: results.part(name, part).median * 1000 for part in parts} for name in divided}
    rows = [(name, *(f"{of[part]:.0f}" for part in parts)) for name, of in found.items()]
    return Table(title, ("milliseconds", *parts), rows, values={"milliseconds": found})


def between(spread: Spread, factor: float, digits: int) -> str:
    return f"{spread.least * factor:.{digits}f}-{spread.most * factor:.{digits}f}"
