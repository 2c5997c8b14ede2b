"""The errors of the state directory's files, as ours: with the options that mend them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from backfill.errors import StateBusyError, StateError
from backfill_state import (
    AnotherLayoutError,
    StateMemoryError,
    StateStoreError,
    TransientStateError,
    UpsertStateDamagedError,
)

FEWER_VNODES: Final = (
    "What a stream's progress may take is fixed, and the ends of so many vnodes of so long a key are more: start over "
    "with a smaller vnodeCount, a fresh checkpointLocation and onExistingState=restart"
)


@contextmanager
def as_ours(*, short_of_memory: str = FEWER_VNODES) -> Iterator[None]:
    """Raises StateBusyError where trying again may help, else StateError.

    `short_of_memory` is what to do about a file that DuckDB has too little memory for.
    """
    try:
        yield
    except TransientStateError as error:
        raise StateBusyError(str(error)) from error
    except AnotherLayoutError as error:
        raise StateError(
            f"{error}. Where the table has got a column since, name those that are stored with the option columns, and "
            "go on; else start over with a fresh checkpointLocation and onExistingState=restart"
        ) from error
    except StateMemoryError as error:
        raise StateError(f"{error}. {short_of_memory}") from error
    except UpsertStateDamagedError as error:
        raise StateError(f"{error} (onExistingState=restart)") from error
    except StateStoreError as error:
        raise StateError(str(error)) from error
