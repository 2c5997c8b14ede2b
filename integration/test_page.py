"""The example on the page of the algorithm, on a real database."""

from __future__ import annotations

import re
from typing import Final

import backfill
from backfill.control import Control
from backfill.state_dir.control_file import keep_control
from integration.database import Database
from integration.fixtures.streams import StartStream
from integration.stream_harness import StreamRun

WRITTEN: Final = {
    1: ["INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')"],
    2: [
        "UPDATE t SET v = 'B' WHERE id = 2",
        "UPDATE t SET v = 'D' WHERE id = 4",
        "DELETE FROM t WHERE id = 1",
        "UPDATE t SET id = 0 WHERE id = 3",
    ],
    3: ["INSERT INTO t VALUES (9, 'i')"],
}
"""What the writer commits before each batch."""

SIGNS: Final = {"insert": "+", "update_postimage": "~", "delete": "-"}


def test_a_stream_does_what_the_page_of_the_algorithm_shows(database: Database, start_stream: StartStream) -> None:
    database.execute("CREATE TABLE t (id bigint PRIMARY KEY, v text)")
    run = start_stream(vnodeCount="1", numPartitions="1")
    (run.folder / "state").mkdir()
    keep_control(run.folder / "state", Control(max_rows=2))
    for number, statements in WRITTEN.items():
        for statement in statements:
            database.execute(statement)
        assert emitted(run) == shown()[number]
    run.finish()


def emitted(run: StreamRun) -> list[str]:
    """Runs a batch and requires that the sink is right; returns what the batch emits, as the page writes it."""
    assert run.plan()
    require, rows = run.judge(), run.read()
    run.commit(rows)
    require()
    return [f"{SIGNS[row['_change_type']]}{row['id']}{'' if row['v'] is None else ':' + row['v']}" for row in rows]


def shown() -> dict[int, list[str]]:
    """What the page says that each batch emits."""
    paragraphs = (backfill.__doc__ or "").split("\n\n")
    (head, _, *lines) = next(text for text in paragraphs if text.startswith("    time ")).splitlines()
    place, begin, end = (head.index(name) for name in ("batch", "emits", "the sink"))
    found: dict[int, list[str]] = {0: []}
    for line in lines:
        number = int(line[place:begin].strip() or max(found))
        found.setdefault(number, []).extend(re.findall(r"[+~-]\d(?::\w)?", line[begin:end]))
    return found
