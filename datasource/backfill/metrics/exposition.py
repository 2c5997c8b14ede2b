"""Prometheus' text format, version 0.0.4 (prometheus.io, "Exposition formats"): samples as text.

It is a page of rules, so it is written here; a package for it would be one more that every driver has to have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name, what kind of number it is, and what it says. The name of a counter ends with `_total`."""

    name: str
    kind: str
    help: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric, and the labels that say what it is of."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def exposition(samples: Iterable[Sample]) -> str:
    """All samples, those of one metric together below its description; metrics in the order of their first samples."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    return "".join(line + "\n" for metric, of in by_metric.items() for line in _lines(metric, of))


def _lines(metric: Metric, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {metric.name} {_escaped(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for sample in samples:
        labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in sample.labels.items())
        yield f"{metric.name}{{{labels}}} {sample.value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
