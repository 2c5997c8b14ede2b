"""The laws of `backfill.upstream`, for any adapter: see `laboratory` for what it takes to hold one to them."""

from __future__ import annotations

import pytest

# Or a law that is broken would not tell what it has compared.
pytest.register_assert_rewrite("tests.contract.laws")
