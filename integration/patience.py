"""How long, and how, a stream under test bears transient errors."""

from __future__ import annotations

from backfill.upstream.postgres.adapter import PostgresUpstream
from backfill.upstream.postgres.failures import RetryPolicy


def bear(upstream: PostgresUpstream, policy: RetryPolicy) -> None:
    """From now on this is what it does about them, wherever it keeps what it was made with."""
    upstream._retries = upstream._sessions._retries = policy
