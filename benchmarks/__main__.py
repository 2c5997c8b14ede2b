"""`python -m benchmarks`; see the package's description."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from benchmarks import changes, distance, freshness, full, memory, snapshot, staging, upsert
from benchmarks.bed import Bed, bed
from benchmarks.report import Table
from benchmarks.rounds import Rounds

BENCHMARKS: Final[Mapping[str, Callable[[Bed, int | None, Rounds], Iterator[Table]]]] = {
    "snapshot": snapshot.run,
    "orders": snapshot.run_orders,
    "vectors": snapshot.run_vectors,
    "wide": snapshot.run_wide,
    "changes": changes.run,
    "wide-changes": changes.run_wide,
    "full": full.run,
    "staging": staging.run,
    "memory": memory.run,
    "distance": distance.run,
    "freshness": freshness.run,
    "upsert": upsert.run,
}
ROUNDS = 5


def main() -> int:
    given = _parser().parse_args()
    names = list(BENCHMARKS) if given.what == "all" else [given.what]
    tables: dict[str, list[Table]] = {}
    with bed(given.java) as place:
        for name in names:
            tables[name] = []
            for table in BENCHMARKS[name](place, given.rows, Rounds(given.rounds, given.patience)):
                tables[name].append(table)
                if not given.json:
                    print(table.to_text(), flush=True)
    if given.json:
        print(json.dumps({name: [table.to_json() for table in found] for name, found in tables.items()}, indent=2))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure against other readers.")
    parser.add_argument("what", nargs="?", choices=[*BENCHMARKS, "all"], default="all")
    parser.add_argument("--rows", type=int, help="rows of the table, or changes in all (default: each one's own)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each runs (default: %(default)s)")
    parser.add_argument("--patience", type=float, default=0.0, help="seconds each run may wait for an idle machine")
    parser.add_argument("--java", default="", help="options for Spark's JVM, such as --java=-Dname=value")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    return parser


if __name__ == "__main__":
    sys.exit(main())
