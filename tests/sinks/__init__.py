"""Keyed sinks without a database: how a batch becomes what a target holds."""

from __future__ import annotations
