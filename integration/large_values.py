"""Documents with values so large that the log leaves them out of updates."""

from __future__ import annotations

from integration.database import Database

LARGE = "string_agg(md5((s * 1000 + i)::text), '')"
"""Some 6 kB that do not compress: the server keeps them outside the row."""


def documents(database: Database, *, identity: str, rows: int = 12) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, title text, body text, extra text);"
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER extra SET STORAGE EXTERNAL;"
        f"ALTER TABLE t REPLICA IDENTITY {identity};"
        f"INSERT INTO t SELECT s, 'title ' || s, {LARGE}, CASE WHEN s % 2 = 0 THEN {LARGE} END "
        f"FROM generate_series(1, {rows}) s, generate_series(1, 200) i GROUP BY s; ANALYZE t"
    )


def change(database: Database) -> None:
    database.execute(
        "UPDATE t SET title = 'new title';"
        "UPDATE t SET body = NULL WHERE id % 3 = 0;"
        "UPDATE t SET body = title WHERE id % 3 = 1;"
        "UPDATE t SET extra = repeat(md5(id::text), 300) WHERE id % 4 = 1;"
        "UPDATE t SET id = id + 100 WHERE id % 5 = 0"
    )
