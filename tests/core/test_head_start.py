"""What makes the first array quicker must leave a process as that array would."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

CODE = """
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
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"([1, None, 3], 'a') {find_spec('pandas') is not None}"
