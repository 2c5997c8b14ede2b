"""The laws of `backfill.upstream`, for any adapter: see `laboratory` for what it takes to hold one to them."""

from __future__ import annotations
