"""A small Spark in this process, for tests, the demo and the benchmarks."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from integration.java import java_home
from integration.kept import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

CLASSES = KEPT / "spark.jsa"
"""Spark's classes as a JVM has them in memory; `integration.spark_classes` makes it, and may not have done so."""

SOURCES = str(Path(__file__).resolve().parents[1])


def quick_jvm() -> str:
    """Options for a JVM that spends most of its time starting: with `CLASSES` it takes half the time.

    Java ignores an archive that was made from other jars or another class path, and by default says so on the output
    that Spark's scripts read.
    """
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
    return f'{options} -XX:SharedArchiveFile="{CLASSES}"' if CLASSES.exists() else options


def home() -> Path:
    """Spark's home as it is installed, but for the archive with PySpark; made where it is not there yet.

    Without the archive Spark's Python processes take PySpark from our installation. From the archive, which has no
    bytecode, each of them would compile it anew: 0.7 s of each query's start, and four times that of a session's.
    """
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    place = KEPT / "spark"
    place.mkdir(parents=True, exist_ok=True)
    for part in ("bin", "jars"):
        link = place / part
        if not link.exists():
            link.unlink(missing_ok=True)  # a broken link, in a clone that has been moved since
            with suppress(FileExistsError):  # another process may have made it in the meantime
                link.symlink_to(Path(found.origin).parent / part)
    return place


def environment() -> dict[str, str]:
    """What Spark must find in its environment before it starts.

    With another Python than ours its workers would not see our package, and Spark would then lose every Python
    data source with no more than a warning.
    """
    return {
        "SPARK_HOME": str(home()),
        "JAVA_HOME": str(java_home(os.environ)),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Functions of the tests reach the workers by their module's name.
        "PYTHONPATH": os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")])),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Some machines have it set. Each of Spark's Python processes would then compile all that it imports.
        "PYTHONDONTWRITEBYTECODE": "",
    }


def configuration(folder: Path) -> dict[str, str]:
    """Two cores, no ports but loopback's, few shuffle partitions, and all files in `folder`."""
    return {
        "spark.master": "local[2]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": f'-Dderby.system.home="{folder / "derby"}" -Djava.io.tmpdir="{folder}"',
        "spark.local.dir": str(folder / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextmanager
def spark_session(folder: Path, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session that ends with the block; `settings` replace or add to `configuration`.

    The environment stays changed: the JVM lives as long as this process and starts workers until then.
    """
    os.environ.update(environment())
    from pyspark.sql import SparkSession  # noqa: PLC0415 - reads the environment

    from backfill.spark.source import BackfillDataSource  # noqa: PLC0415 - the same

    builder = SparkSession.builder.appName("backfill")
    for name, value in {**configuration(folder), **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    if " " in sys.executable:
        # Spark asks a shell whether there is such a program, but passes two words, and then looks for no sources.
        session.dataSource.register(BackfillDataSource)
    try:
        yield session
    finally:
        session.stop()
