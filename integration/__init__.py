"""Tests against a real PostgreSQL and a real Spark, and the servers they run on."""

from __future__ import annotations
