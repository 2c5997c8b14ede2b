"""Every error a user can meet.

A **definite** error stays true however often one tries again: a wrong option, a lost slot, a value with no lossless
type. A **transient** one may go away by itself: a cut connection, a slot still held by a process that is ending. Only
transient errors are retried, and only these:

- PostgreSQL's, by `upstream.postgres.session.retries`;
- those of files in stagingDir, by Arrow and, where Arrow does not, by `staging.failures`;
- removing a folder there into which another file has just come, by `staging`;
- a Delta MERGE that lost to another writer, by the sink.

Beside these, the check whether a batch has been read is repeated whatever error it met (`release`), and a Delta table
whose log was being cleaned up is opened again (`upstream.delta.tables.opening`).

Two transient errors are also handled without a retry. After SnapshotGoneError another state is taken, unless another
attempt has staged the rows or they are not needed. After StateBusyError progress is recorded later, and whoever only
looks at it does without. The state store's own errors are in `backfill_state.errors`.

A message says what was found, what was expected and what to do, with the SQL or the option that mends it.
It never carries row values or secrets, because Spark writes it into logs unredacted.
"""

from __future__ import annotations


class BackfillError(Exception):
    """The base of all errors raised on purpose; survives pickling, because Spark carries it between processes."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class DefiniteError(BackfillError):
    """Trying again cannot help; somebody has to change something."""


class TransientError(BackfillError):
    """Trying again may help; raised to the user only after the retries are used up."""


class OptionsError(DefiniteError):
    """One or more options are unknown, missing, malformed or contradictory."""


class TableError(DefiniteError):
    """The table is missing, cannot be read, has no usable key, or is not the table the stream began with."""


class UnknownFeatureError(TableError):
    """The table uses a feature that the package which reads it does not know."""


class UnsupportedTypeError(DefiniteError):
    """A column's type has no lossless Arrow and Spark type."""


class ValueOutOfRangeError(DefiniteError):
    """A column holds a value that its Spark type cannot hold, such as an infinite timestamp."""


class KeyTextError(DefiniteError):
    """A text that a person gave as a key is not a value of the key's column."""


class SchemaChangedError(DefiniteError):
    """The table's columns changed in a way that would misalign or lose data."""


class UnchangedToastError(DefiniteError):
    """An update left out a large unchanged value, which the change log does not carry."""


class TruncateError(DefiniteError):
    """The table was truncated; the stream was not told what to do about that."""


class DatabaseSetupError(DefiniteError):
    """The database's settings, rights or free slots do not allow the stream."""


class DriverError(DefiniteError):
    """The database's driver cannot be loaded in this process, or the process lacks memory, threads or open files."""


class DataLossError(DefiniteError):
    """Changes the stream has not read are gone: the slot, the system or the timeline is not the one it followed."""


class FileGoneError(DefiniteError):
    """A file that belongs to a version of a Delta table, or to its changes, is not there."""


class OffsetError(DefiniteError):
    """An offset in the checkpoint cannot be read by this version, or was written by another upstream."""


class StateError(DefiniteError):
    """What is stored, the table and what is asked for do not belong together; or a file in stateDir cannot be used."""


class StagingError(DefiniteError):
    """A staged file is missing or damaged, or the staging directory cannot be used."""


class ConnectionLostError(TransientError):
    """The database could not be reached, or closed the connection."""


class OtherServerError(ConnectionLostError):
    """The server that answered is not the one whose change log is read."""


class StagingUnreachableError(TransientError):
    """The store that stagingDir is on does not answer, or refuses for now."""


class TableLockedError(TransientError):
    """Another session holds a lock on the table for longer than is waited for."""


class TableBusyError(TransientError):
    """Other writers have changed a sink's Delta table each time that a batch was to be committed to it."""


class StateBusyError(TransientError):
    """The state directory is in use by another process, or a batch that was being read has been planned by another."""


class SlotBusyError(TransientError):
    """The replication slot is held by another process, most often one that is just ending."""


class SnapshotGoneError(TransientError):
    """The pinned state ended before everything that was to be read at it had been read."""
