"""A program that is type-checked gets our types: the Python examples of the pages pass mypy, as seen from outside."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

from integration.kept import KEPT
from tests.docs.pages import PAGES

ASSUMED: Final = """
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

spark: SparkSession
query: StreamingQuery
orders: DataFrame
"""
"""What the examples assume the reader's program to have."""


def test_the_examples_of_the_documentation_are_right_by_our_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(ASSUMED + "\n".join(examples()))
    # No configuration: ours tells mypy where the sources are. An example may use a name for one thing after another.
    options = ["--config-file=", "--check-untyped-defs", "--allow-redefinition", "--warn-unreachable"]
    options += ["--cache-dir", str(KEPT / "mypy")]  # PySpark's types, kept here, take most of the time
    mypy = [sys.executable, "-m", "mypy", *options, program.name]
    checked = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def examples() -> list[str]:
    """Returns the examples of all pages, each as a function of its own, named for its page."""
    found = [
        (re.sub(r"\W", "_", page.stem), text)
        for page, content in PAGES.items()
        for text in re.findall(r"```python\n(.*?)```", content, re.DOTALL)
    ]
    assert found
    return [f"def {name}_{at}() -> None:\n{textwrap.indent(text, '    ')}" for at, (name, text) in enumerate(found)]
