"""The only package that imports pyspark: the data source, its stream reader and the types between Arrow and Spark."""

from __future__ import annotations
