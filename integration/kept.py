"""Where the tests keep what takes long to make: in the virtual environment, with which it goes."""

from __future__ import annotations

import sys
from pathlib import Path

KEPT = Path(sys.prefix) / "share" / "backfill-tests"
