"""What file systems refuse, as errors of ours, and which reads are tried again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import pyarrow as pa

from backfill.errors import BackfillError, StagingError, StagingUnreachableError
from backfill.scarcity import scarcity
from backfill.wording import unusable

_MAY_PASS: Final = re.compile(
    r"AWS Error (NETWORK_CONNECTION|SLOW_DOWN|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|REQUEST_TIMEOUT|"
    r"NO_SUCH_UPLOAD|"  # The upload was completed and the answer lost, or a lifecycle rule has ended it.
    r"UNKNOWN \(HTTP status (429|5\d\d)\))|Azure Error: \[\w*\] (429 |5\d\d |Fail to get a new connection)|"
    r"google::cloud::Status\((UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED|INTERNAL|ABORTED)|"
    r"[Pp]lease (try again|reduce your request rate)"  # All that Arrow tells of an object that S3 did not delete.
)
"""Arrow's texts for a store that may answer later. Arrow itself has tried again before: on S3 for some six seconds."""

_DENIED: Final = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH|"
    r"REQUEST_TIME_TOO_SKEWED|REQUEST_EXPIRED|UNKNOWN \(HTTP status 40[013]\).*(Token|No response body))|"
    r"Azure Error: \[\w*\] 40[13] |google::cloud::Status\((PERMISSION_DENIED|UNAUTHENTICATED)"
)
"""Arrow's texts for a store that does not take the credentials, or not for this. To a HEAD, S3 gives no reason."""

_NO_ROOM_FOR_ANSWER: Final = "Failed to flush response stream"
_PAUSES: Final = (0.1, 0.4, 1.5, 4.0)
"""Seconds between the tries of a read: together the six that Arrow takes for others."""

_T = TypeVar("_T")


@contextmanager
def being(done: str) -> Iterator[None]:
    """Raises what the file system refuses (a full disk, a store without rights) as our error."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:  # ValueError: a URI whose %ff is no UTF-8
        raise failed(done, error) from error


def is_of_store(error: Exception) -> bool:
    """Whether the store may answer later, or does not let us at the file: neither says anything about the file."""
    return isinstance(error, PermissionError) or any(of.search(str(error)) for of in (_MAY_PASS, _DENIED))


def failed(done: str, error: Exception) -> BackfillError:
    lacking = scarcity(error)
    if lacking is not None:
        return lacking
    if _MAY_PASS.search(str(error)):
        return StagingUnreachableError(
            f"stagingDir cannot be {done} for now: {error}. Start the query again when its store answers"
        )
    if _DENIED.search(str(error)):
        return StagingError(
            f"stagingDir cannot be {done}: {error}. Its store refuses access: check the credentials in the "
            "environment of the driver and of the executors, whether they have expired, and the clock; then start "
            "the query again"
        )
    return StagingError(unusable("stagingDir", done, error))


def tried_again(read: Callable[[], _T]) -> _T:
    """The result of a read of a few bytes, which is tried again. On S3 Arrow does not do that, as it does for all else:
    the text of a refusal, as for being asked too much, has no room where these bytes should go, and that is the error
    then.
    """
    for pause in _PAUSES:
        try:
            return read()
        except OSError as error:
            if _NO_ROOM_FOR_ANSWER not in str(error):
                raise
        time.sleep(pause)
    return read()
