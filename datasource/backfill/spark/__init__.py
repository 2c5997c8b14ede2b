"""Spark's calls and types; the only package that imports pyspark.

source          what Spark finds under the name `backfill`
stream_reader   spark.readStream: the stream
offsets         the stream's offsets, each read once
batch_reader    spark.read: the table as it is now
span_reader     spark.read with startingPosition: the changes between two positions
view_reader     spark.read with view: where a stream is
monitor         where a running query is, for notebooks
prometheus      the same of all queries of a session, as metrics
partition       a reader's partitions, when they come back to it
types           Arrow's types as Spark's
refusal         our errors as Spark shows them
table_options   the options of CREATE TABLE
head_start      importing pandas while the process waits for the database, or not at all
"""

from __future__ import annotations
