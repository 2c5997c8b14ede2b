"""Imports ahead of the first array, which make it quicker, leave a process as that array would."""

from __future__ import annotations

import signal
import subprocess
import sys
from importlib.util import find_spec

AHEAD = """
import sys
import pyarrow as pa
from backfill.spark.head_start import head_start
assert "pandas" not in sys.modules
thread = head_start()
assert head_start() is thread
meanwhile = pa.array([1, None, 3]).to_pylist(), pa.scalar("a").as_py()
thread.join()
print(meanwhile, "pandas" in sys.modules)
"""


def test_the_first_array_finds_pandas_imported_and_the_arrays_made_meanwhile_are_right() -> None:
    done = subprocess.run([sys.executable, "-c", AHEAD], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"([1, None, 3], 'a') {find_spec('pandas') is not None}"


WITHOUT = """
import sys
import pyarrow as pa
from backfill.spark.head_start import without_pandas
without_pandas()
print(pa.array([1, None, 3]).to_pylist(), pa.table({"a": [1]}).num_rows, "pandas" in sys.modules)
"""


def test_a_process_without_pandas_makes_the_same_arrays() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[1, None, 3] 1 False"


IMPORTED = """
import sys
from backfill.spark.head_start import import_ahead
sys.modules["deltalake"] = None  # as if it were not installed
for given in ({"dbtable": "t"}, {"path": "/t"}):
    import_ahead(given).join()
print("backfill.opening" in sys.modules, "psycopg" in sys.modules, "backfill.upstream.delta" in sys.modules)
"""


def test_what_a_stream_is_opened_with_is_imported_ahead_and_what_is_missing_is_reported_at_opening() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], check=True, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("True True False", "")


FAILED_MEANWHILE = """
import importlib._bootstrap, sys, threading, time
from backfill.spark import stream_reader
from pyspark.sql.types import StructType

def waits(thread):  # for the import of the other one, or for that itself
    return sys._current_frames()[thread.ident].f_code.co_filename in (
        importlib._bootstrap.__file__, "<frozen importlib._bootstrap>", threading.__file__
    )

class NoRoom:
    @staticmethod
    def find_spec(name, *_):
        if name == "duckdb":
            begun.append(name)
            while threading.current_thread() is not main and not waits(main):
                time.sleep(0.001)
            raise ImportError("_duckdb.so: failed to map segment from shared object")

main, begun = threading.main_thread(), []
sys.meta_path.insert(0, NoRoom)
sys.orig_argv.append(stream_reader._RUNNER)
reader = stream_reader.BackfillStreamReader({"dbtable": "t"}, StructType())
while not begun:
    time.sleep(0.001)
try:
    reader.latestOffset(reader.initialOffset(), None)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_what_cannot_be_imported_ahead_is_reported_though_the_stream_is_opened_meanwhile() -> None:
    done = subprocess.run([sys.executable, "-c", FAILED_MEANWHILE], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("DriverError this Python process has too little memory: _duckdb.so")


ENDED_MEANWHILE = """
import os, signal, sys
from backfill.spark import head_start, stream_reader

def find_spec(_self, name, *_):
    if name == "pandas":
        os.kill(os.getpid(), signal.SIGTERM)
        raise ModuleNotFoundError(name)

head_start._WithoutPandas.find_spec = find_spec
stream_reader._prepare_runner({})
print("goes on")
"""


def test_a_process_that_is_to_end_while_arrow_looks_for_pandas_ends() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDED_MEANWHILE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, "")
