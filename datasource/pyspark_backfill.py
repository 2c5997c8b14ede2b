"""Spark's registration hook: Spark imports every top-level `pyspark_*` module and takes its `DefaultSource`.

One such module that fails to import makes Spark lose *all* Python data sources of the session, so this one imports
nothing that could be missing: drivers are imported when an upstream is opened.
"""

from __future__ import annotations

from backfill.spark.source import BackfillDataSource as DefaultSource

__all__ = ["DefaultSource"]
