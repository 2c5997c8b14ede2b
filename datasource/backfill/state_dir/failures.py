"""The errors of the state directory's files, as ours: with the options that mend them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from backfill.errors import StateBusyError, StateError
from backfill.wording import FRESH_START
from backfill_state import (
    AnotherLayoutError,
    StateMemoryError,
    StateStoreError,
    TransientStateError,
    UpsertStateDamagedError,
    UpsertStateMemoryError,
)


@contextmanager
def as_ours() -> Iterator[None]:
    """Raises the state store's errors as ours: StateBusyError where trying again may help, else StateError."""
    try:
        yield
    except TransientStateError as error:
        raise StateBusyError(str(error)) from error
    except AnotherLayoutError as error:
        raise StateError(
            f"{error}: name the stored columns with the option columns, in their order, and new ones after them; or, "
            f"if one is gone or has another type, or none but the key was stored, start over with {FRESH_START}"
        ) from error
    except UpsertStateMemoryError as error:
        raise StateError(f"{error} with the option stateMemory") from error
    except StateMemoryError as error:
        raise StateError(f"{error}: start over with a smaller vnodeCount, {FRESH_START}") from error
    except UpsertStateDamagedError as error:
        raise StateError(f"{error} (onExistingState=restart)") from error
    except StateStoreError as error:
        raise StateError(str(error)) from error
