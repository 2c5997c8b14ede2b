"""What the README shows is run as it stands there, against a database of our own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from integration.database import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = (Path(__file__).parents[1] / "README.md").read_text()

TABLE = """
    CREATE TABLE orders (id bigint PRIMARY KEY, status text, total numeric(10,2));
    INSERT INTO orders SELECT i, CASE WHEN i % 3 = 0 THEN 'open' ELSE 'paid' END, i FROM generate_series(1, 300) i;
"""


@pytest.fixture
def orders(database: Database) -> Database:
    database.execute(TABLE)
    return database


def blocks(heading: str) -> list[tuple[str, str]]:
    """The language and the text of each block of code below this heading."""
    section = re.split(r"^## ", README, flags=re.MULTILINE)
    (text,) = [part for part in section if part.startswith(heading + "\n")]
    return re.findall(r"^```(python|sql)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run(heading: str, spark: SparkSession, database: Database, folder: Path) -> dict[str, Any]:
    """Runs the blocks in their order; the names that they define."""
    names: dict[str, Any] = {"spark": spark}
    for language, text in blocks(heading):
        here = text.replace("/data/", f"{folder}/")
        here = re.sub(r"postgresql://app@db/shop(\?passfile=[\w/]+)?", database.url(folder), here)
        if language == "python":
            exec(compile(here, f"README.md, {heading}", "exec"), names)  # noqa: S102 - our own text
        else:
            for statement in filter(str.strip, here.split(";\n")):
                names["_"] = spark.sql(statement).collect()
    return names


def test_reading_the_table_as_it_is_now(spark: SparkSession, orders: Database, tmp_path: Path) -> None:
    names = run("Reading the table as it is now", spark, orders, tmp_path)
    try:
        assert names["open_orders"].count() == 67
        assert spark.table("orders_snapshot").count() == 300
    finally:
        spark.sql("DROP TABLE orders_snapshot")
