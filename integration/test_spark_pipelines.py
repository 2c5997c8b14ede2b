"""Spark Connect and Spark Declarative Pipelines, each in processes of their own."""

from __future__ import annotations

import hashlib
import json
import operator
import os
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pyspark
import pytest

from backfill.__main__ import main
from integration.database import Database
from integration.java import java_home
from integration.kept import KEPT
from integration.spark_session import configuration, environment, quick_jvm

pytestmark = pytest.mark.spark

PROJECTS = Path(__file__).parent / "pipelines"
SPARK = Path(pyspark.__file__).parent
PATIENCE = 400

TABLE = """
    CREATE TABLE orders (id bigint PRIMARY KEY, status text, total numeric(10,2));
    INSERT INTO orders SELECT i, CASE WHEN i % 3 = 0 THEN 'open' ELSE 'paid' END, i FROM generate_series(1, 300) i;
"""


def settings(folder: Path) -> dict[str, str]:
    """The settings of the session that all tests share."""
    own = configuration(folder)
    del own["spark.master"]  # which a Connect session may not name
    return own


def kept(folder: Path) -> dict[str, str]:
    """The same settings, with a catalog and a log of events that are kept in the folder."""
    (folder / "events").mkdir(exist_ok=True)
    return {
        **settings(folder),
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder / 'metastore'};create=true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }


def run(command: list[str], folder: Path, classes: Path | None = None) -> str:
    """Runs the command until it and all that it has started have ended, because a JVM may go on for a while and holds
    the catalog; returns what they print. Its Connect server takes a port of its own, and also finds these `classes`.
    """
    env = {**os.environ, **environment(), "SPARK_TESTING": "1"}
    # The only ways in which spark-pipelines hands classes and options to its server.
    env |= {"SPARK_DIST_CLASSPATH": str(classes or ""), "JAVA_TOOL_OPTIONS": quick_jvm()}
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=env, stdin=null, stdout=pipe, stderr=subprocess.STDOUT) as process:
        try:
            output, _ = process.communicate(timeout=PATIENCE)  # until nobody has the pipe any more
        finally:
            kill(process)
    (folder / f"{Path(command[0]).name}.log").write_bytes(output)
    text = output.decode(errors="replace")
    assert process.returncode == 0, text[-8000:]
    return text


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process with all that it has started, unless it has ended."""
    if process.poll() is None:
        top = psutil.Process(process.pid)
        for each in (*top.children(recursive=True), top):
            each.kill()
    process.wait()


def project(name: str, folder: Path, url: str) -> Path:
    """Copies this pipeline's project, with our own database and folder; returns its description."""
    copy = folder / name
    shutil.copytree(PROJECTS / name, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for file in copy.rglob("*.*"):
        file.write_text(file.read_text().replace("postgresql://app@db/shop", url).replace("/data/", f"{folder}/"))
    return copy / "spark-pipeline.yml"


def connected(folder: Path, url: str, login: dict[str, str]) -> dict[str, object]:
    given = {
        "folder": str(folder),
        "url": url,
        "login": login,
        "settings": kept(folder),
    }
    out = run([sys.executable, "-m", "integration.connect_driver", json.dumps(given)], folder)
    found: dict[str, object] = json.loads(next(line for line in out.splitlines() if line.startswith('{"session"')))
    return found


def run_pipeline(
    spec: Path, folder: Path, conf: dict[str, str], classes: Path | None = None, *, full_refresh: bool = False
) -> None:
    program = str(Path(sys.executable).with_name("spark-pipelines"))
    settled = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    refresh = ["--full-refresh-all"] if full_refresh else []
    run([program, "run", *settled, "--spec", str(spec), *refresh], folder, classes)


def compiled(source: Path, folder: Path) -> Path:
    """Compiles a Scala source with Spark's own compiler; returns its classes, kept for the next run of the tests."""
    of = hashlib.sha256(pyspark.__version__.encode() + source.read_bytes()).hexdigest()[:12]
    classes = KEPT / f"{source.stem}-{of}.jar"
    if not classes.exists():
        java = str(java_home(os.environ) / "bin" / "java")
        compiler = [java, "-cp", str(SPARK / "jars" / "*"), "scala.tools.nsc.Main", "-usejavacp"]
        made = classes.with_suffix(f".{os.getpid()}.jar")
        run([*compiler, "-Xfatal-warnings", "-deprecation", "-d", str(made), str(source)], folder)
        made.replace(classes)
    return classes


@pytest.mark.timeout(2 * PATIENCE + 60)
def test_a_connect_session_then_a_pipeline_over_the_table_it_has_made(database: Database, tmp_path: Path) -> None:
    """So the table outlives its session; and nothing that the two leave behind names a password."""
    database.execute(TABLE)
    database.execute("CREATE TABLE orders_copy (LIKE orders INCLUDING ALL)")
    url, login = database.url(tmp_path), database.login()
    assert connected(tmp_path, url, login) == {
        "session": "pyspark.sql.connect.session",
        "batch": 3,
        "table": 300,
        "view": 300,
        "progress": ["changes", 300, False],
        "stream": 300,
    }
    assert database.execute("TABLE orders_copy ORDER BY id") == database.execute("TABLE orders ORDER BY id")
    database.execute("DELETE FROM orders WHERE id = 300")
    warehouse, spec = tmp_path / "warehouse", project("orders", tmp_path, url)
    run_pipeline(spec, tmp_path, kept(tmp_path))
    database.execute("DELETE FROM orders WHERE id = 299; INSERT INTO orders VALUES (301)")
    for state in ("state/orders_log", "feed"):
        assert main(["drop", "--state-dir", str(tmp_path / state), "--url", url]) == 0
    run_pipeline(spec, tmp_path, kept(tmp_path), full_refresh=True)
    assert pq.read_table(warehouse / "orders_log").num_rows == 299
    assert set(pq.read_table(warehouse / "orders_from_table")["id"].to_pylist()) == {*range(1, 299), 301}
    (kinds,) = pq.read_table(warehouse / "changes_by_kind").to_pylist()
    assert kinds == {"_change_type": "insert", "changes": 299}
    left = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.is_relative_to(tmp_path / "events") for file in left)
    assert [file for file in left if login["password"].encode() in file.read_bytes()] == []


SEEN = """
    CREATE MATERIALIZED VIEW orders_copied AS SELECT id, status, total FROM lake.default.orders_copy;
    CREATE MATERIALIZED VIEW orders_past AS SELECT * FROM lake.default.orders_history
"""

CHANGES = """
    UPDATE orders SET status = 'sent' WHERE id % 10 = 0;
    UPDATE orders SET id = -id WHERE id % 10 = 1;
    DELETE FROM orders WHERE id % 10 = 2;
    UPDATE orders SET total = 0.5 WHERE id = 4; DELETE FROM orders WHERE id = 4; INSERT INTO orders VALUES (4, 'again');
    INSERT INTO orders VALUES (1000, 'short', 0); UPDATE orders SET id = 1001 WHERE id = 1000;
    DELETE FROM orders WHERE id = 1001
"""


@pytest.mark.timeout(2 * PATIENCE + 60)
def test_auto_cdc_flows_keep_a_copy_of_the_table_and_its_history(database: Database, tmp_path: Path) -> None:
    """They use a catalog of our own, because no catalog of Spark has tables that know MERGE."""
    database.execute(TABLE)
    classes = compiled(PROJECTS / "catalog" / "FolderCatalog.scala", tmp_path)
    spec = project("orders_copy", tmp_path, database.url(tmp_path))
    catalog = {"spark.sql.catalog.lake": "backfill.FolderCatalog", "spark.sql.catalog.lake.path": f"{tmp_path}/lake"}
    spec.write_text(spec.read_text() + f"configuration: {json.dumps(catalog)}\n")
    (spec.parent / "transformations" / "seen.sql").write_text(SEEN)
    for statements in ("", CHANGES):
        database.execute(statements)
        # Spark's own catalog forgets the tables that we look at, and leaves their rows behind.
        shutil.rmtree(tmp_path / "spark-warehouse", ignore_errors=True)
        run_pipeline(spec, tmp_path, settings(tmp_path), classes)
        # spark-pipelines does not pass on where the warehouse is.
        copied, past = (
            pq.read_table(tmp_path / "spark-warehouse" / name).to_pylist() for name in ("orders_copied", "orders_past")
        )
        table = database.execute("TABLE orders ORDER BY id")
        assert sorted(tuple(row.values()) for row in copied) == table
        assert sorted(_values(row) for row in past if row["__END_AT"] is None) == table
    versions = sorted((row for row in past if row["id"] == 4), key=operator.itemgetter("__START_AT"))
    assert [_values(row) for row in versions] == [(4, "paid", 4), (4, "paid", Decimal("0.5")), (4, "again", None)]
    updated, deleted, added = versions
    assert updated["__END_AT"] == deleted["__START_AT"] < deleted["__END_AT"] < added["__START_AT"]
    assert updated["_commit_timestamp"] < deleted["_commit_timestamp"] <= added["_commit_timestamp"]
    # 30 were updated, 30 got another key, row 4 had two more versions, and the short one had two keys.
    assert len(past) == 300 + 30 + 30 + 2 + 2


def _values(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["id"], row["status"], row["total"]
