"""From options to the adapter for the source that they name. Its packages are imported only when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from backfill.errors import OptionsError
from backfill.options import Options
from backfill.scarcity import importing
from backfill.upstream import DELTA, Upstream
from backfill.upstream.findings import Finding
from backfill.wording import in_option


def open_upstream(options: Options, *, patience: float | None = None) -> Upstream:
    """The adapter for what the options name; its driver is imported here, not before.

    `patience`: for how many seconds PostgreSQL's transient failures are retried (default: the adapter's own). For the
    store of a Delta table, `deltalake` decides.
    """
    if options.path:
        with needing("reading a Delta table", "delta"):
            from backfill.upstream.delta import DeltaUpstream  # noqa: PLC0415
        return DeltaUpstream(options)
    with needing("reading PostgreSQL", "postgres"):
        from backfill.upstream.postgres import PostgresUpstream  # noqa: PLC0415
        from backfill.upstream.postgres.session.retries import RetryPolicy  # noqa: PLC0415
    return PostgresUpstream(options, RetryPolicy() if patience is None else RetryPolicy(give_up_after=patience))


def examine(options: Options) -> tuple[Finding, ...]:
    """Finds what would keep a stream with these options from beginning, or surprise its user; changes nothing."""
    if options.path:
        with needing("reading a Delta table", "delta"):
            from backfill.upstream.delta.doctor import examine as examine_delta  # noqa: PLC0415
        return examine_delta(options)
    with needing("reading PostgreSQL", "postgres"):
        from backfill.upstream.postgres.doctor import examine  # noqa: PLC0415
    return examine(options)


@contextmanager
def needing(what: str, extra: str) -> Iterator[None]:
    """As `importing`; where packages that the block imports are missing or cannot be used, says what to install."""
    install = f"run pip install 'pyspark-backfill[{extra}]' on the driver and on every executor"
    try:
        with importing():
            yield
    except ModuleNotFoundError as error:
        raise OptionsError(f"{what} needs the package {error.name}; {install}") from error
    except ImportError as error:
        raise OptionsError(f"{what} needs a package that cannot be used ({error}); mend that, or {install}") from error


def source_of(upstream: str, table: str, key: Sequence[str], *, url: str, user: str) -> dict[str, str]:
    """The options that name the source of a stream, from what is recorded of it; a Delta table needs no `url`."""
    if upstream == DELTA:
        return {"path": table, "keyColumns": ", ".join(map(in_option, key))}
    return {"url": url, "user": user, "dbtable": table}
