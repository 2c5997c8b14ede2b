"""Reading on after a connection was lost, instead of beginning again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from backfill.errors import ConnectionLostError, SnapshotGoneError, TransientError
from backfill.upstream.postgres.session.retries import RetryPolicy, Tries


def resuming(
    attempt: Callable[[int], Iterator[pa.RecordBatch]], retries: RetryPolicy, *, same_again: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of an attempt; after a transient error, unless the state itself is gone, those of another attempt, which
    is told how many rows have been passed on and gives those after them.

    `same_again`: each attempt finds the same rows in the same order, however they are cut into batches. Without that,
    another attempt is made only while no row has been passed on.
    """
    passed_on = 0
    tries = Tries(retries)
    while True:
        try:
            for rows in attempt(passed_on):
                passed_on += rows.num_rows
                tries.succeeded()
                yield rows
        except SnapshotGoneError:
            raise
        except TransientError as error:
            if passed_on and not same_again:
                raise ConnectionLostError(
                    f"the snapshot was lost with its session, and the rows have to be read again: {error}"
                ) from None
            tries.pause_or_raise(error)
        else:
            return
