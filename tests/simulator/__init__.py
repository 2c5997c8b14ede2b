"""A database in memory with transactions, delayed visibility and a change log: an upstream for property tests."""

from __future__ import annotations
