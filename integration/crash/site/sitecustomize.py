"""Loaded by every Python process that has this folder on its PYTHONPATH; see `integration.crash.killing`."""

from __future__ import annotations

import os

from integration.crash import killing

killing.install(killing.Plan.from_environment(os.environ))
