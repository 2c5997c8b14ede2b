"""Every error a store raises on purpose.

    StateStoreError
      DefiniteStateError        trying again cannot help; somebody has to change something
        StateConflictError      the call does not fit what is stored
          BarrierBackwardsError a barrier older than the stored one
          ConsolidationError    output that does not add up to one row for each key
        StateLayoutError        rows or a key that the layout cannot hold
        StateVersionError       the file was written by a newer release
        StateFileError          something is wrong with the file:
          StateDamagedError     it cannot be read as a state file
            UpsertStateDamagedError the same for the file of an upsert state
          StateUnwritableError  the disk is full, or the place cannot be opened or written
          StateMemoryError      the memory that DuckDB may take is not enough
            UpsertStateMemoryError the same for an upsert state, which may be given more
          StateNoMemoryLeftError the system gives the process no more memory, whatever DuckDB may take
      TransientStateError       trying again may help
        StateBusyError          another process or transaction has the file

Each keeps its facts in `args`, from which pickle makes it anew and `str` makes its text. A text names what was
found, what was expected and what to do; it never carries a key's values.
"""

from __future__ import annotations

from typing import Final

ANOTHER_CHECKPOINT: Final = (
    "Restore the checkpoint that this state belongs to; else go on from the state with a fresh checkpoint and "
    "onExistingState=resume, or start the stream over"
)


class StateStoreError(Exception):
    """The base of all errors that a store raises on purpose."""


class DefiniteStateError(StateStoreError):
    """Trying again cannot help; somebody has to change something."""


class TransientStateError(StateStoreError):
    """Trying again may help."""


class StateConflictError(DefiniteStateError):
    """The call does not fit what is stored: another stream, or a stream that has moved on. Nothing was changed."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


class AnotherLayoutError(StateConflictError):
    """What is stored is of another stream, or of other columns."""


class BarrierBackwardsError(StateConflictError):
    """A barrier with a smaller epoch than the stored one. Nothing was changed."""

    def __init__(self, where: str, stored: int, given: int) -> None:
        super().__init__(
            where,
            f"the state is at epoch {stored} and never moves back, but was given epoch {given}; either an older "
            f"checkpoint was restored or two queries share this state. {ANOTHER_CHECKPOINT}",
        )
        self.args = (where, stored, given)
        self.stored = stored
        self.given = given


class ConsolidationError(StateConflictError):
    """Output that was taken for complete does not add up to one row for each key. Nothing was changed."""

    def __init__(self, where: str, keys: int, lines: int) -> None:
        super().__init__(
            where,
            f"the output does not add up: {keys} keys have a row that was added or retracted too often, among "
            f"{lines} lines. A part of the output is missing or was given twice. Reset the upsert state and "
            "consolidate it from the complete output, or build it from a new snapshot",
        )
        self.args = (where, keys, lines)
        self.keys = keys
        self.lines = lines


class StateLayoutError(DefiniteStateError):
    """Rows or a key that do not fit the layout: a missing column, another type, a vnode named twice."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


class StateFileError(DefiniteStateError):
    """Something is wrong with the file at `path`; `found` is what DuckDB or the system says of it."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(path, found)
        self.path = path
        self.found = found

    def __str__(self) -> str:
        return f"the state file {self.path}: {self.found}"


class StateDamagedError(StateFileError):
    """The file is damaged, or is no DuckDB file at all."""

    def __str__(self) -> str:
        return (
            f"the state file {self.path} is damaged or is not a state file ({self.found}). If it is this stream's, "
            f"delete it together with {self.path}.wal and start the query again: the checkpoint alone suffices to "
            "rebuild it"
        )


class UpsertStateDamagedError(StateDamagedError):
    """The file of an upsert state is damaged, or is no DuckDB file at all."""

    def __str__(self) -> str:
        return (
            f"the upsert state file {self.path} is damaged or is not a state file ({self.found}). The checkpoint does "
            f"not suffice to rebuild it: if it is this stream's, delete it together with {self.path}.wal, and start "
            "the stream over with a fresh checkpoint"
        )


class StateVersionError(DefiniteStateError):
    """The file was written by a newer release than this one; it was not touched."""

    def __init__(self, path: str, found: str, supported: str) -> None:
        super().__init__(path, found, supported)
        self.path = path
        self.found = found
        self.supported = supported

    def __str__(self) -> str:
        return (
            f"the state file {self.path} has {self.found}, and this release reads {self.supported}; upgrade to the "
            "release that wrote it. A stream's progress may instead be deleted, to have it rebuilt from the "
            "checkpoint; an upsert state only to start the stream over"
        )


class StateUnwritableError(StateFileError):
    """The disk is full, or the file's place cannot be opened or written. What was stored before is intact."""

    def __str__(self) -> str:
        return (
            f"the state file {self.path} could not be opened or written ({self.found}). Run this with the account "
            "that owns it; or check that its directory exists and is writable, that its disk has room, and that this "
            "process may open more files. What was stored before is intact"
        )


class StateMemoryError(StateFileError):
    """DuckDB may not take as much memory as it needs. What was stored before is intact."""

    def __str__(self) -> str:
        return (
            f"the state file {self.path} needs more memory than DuckDB may use for it ({self.found}), and that limit "
            "is fixed. What was stored before is intact. Very many vnodes of a long key need so much; use fewer "
            "vnodes"
        )


class UpsertStateMemoryError(StateMemoryError):
    """An upsert state needs more memory than DuckDB may take, but may be given more. What was stored is intact."""

    def __str__(self) -> str:
        return (
            f"the upsert state file {self.path} needs more memory than DuckDB may take for it ({self.found}). What was "
            "stored before is intact. Allow it more"
        )


class StateNoMemoryLeftError(StateFileError):
    """The system gives this process no more memory, whatever DuckDB may take. What was stored before is intact."""

    def __str__(self) -> str:
        return (
            f"the state file {self.path} needs more memory than the system gives this process ({self.found}). What "
            "was stored before is intact. Allow the process more, if it is limited (ulimit -v, "
            "spark.sql.planner.pythonExecution.memory), or free memory that others use"
        )


class StateBusyError(TransientStateError):
    """Another process, or another transaction of this one, has the file; `holder` is its process id if known."""

    def __init__(self, path: str, holder: int | None) -> None:
        super().__init__(path, holder)
        self.path = path
        self.holder = holder

    def __str__(self) -> str:
        who = "another process" if self.holder is None else f"process {self.holder}"
        return (
            f"the state file {self.path} is in use by {who}; DuckDB opens it for one process at a time. Close "
            "whatever has it open, or stop the other query that uses this state"
        )
