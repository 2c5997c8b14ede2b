"""The end of a stream for good: nothing of it is left in its database, its stateDir and its stagingDir."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

from backfill.adapters import open_upstream, source_of
from backfill.errors import OptionsError, StagingError, StagingUnreachableError, StateError
from backfill.options import Options, parse
from backfill.staging import Staging
from backfill.state_dir.claim import claim
from backfill.state_dir.control_file import changing
from backfill.state_dir.files import STATE_FILE, open_store, remove_files
from backfill.state_dir.kept_options import has_place
from backfill.upstream import DELTA, Bookmark
from backfill_state import StreamIdentity

PATIENCE: Final = 10.0
"""Seconds for which the database may be out of reach."""

WHERE_LOST: Final = (
    "If a stream's state is lost, start the query, which rebuilds it from the checkpoint, and stop it; or run in its "
    "PostgreSQL database SELECT pg_drop_replication_slot('backfill_…'); DROP PUBLICATION backfill_…"
)


def drop(folder: Path, *, staging_dir: str, url: str, user: str) -> list[str]:
    """Drops the stream of the state directory. Returns what was done, in sentences for people.

    `staging_dir` and `url` are those of the stream, or empty. Raises StateError where there is no stream, or a query
    uses it.
    """
    with claim(folder):  # else a running query would lose the slot that it reads from
        return _drop(folder, staging_dir, url, user)


def _drop(folder: Path, staging_dir: str, url: str, user: str) -> list[str]:
    identity = _recorded(folder)
    placed = has_place(identity.properties)
    if placed and identity.upstream != DELTA and not url:
        raise OptionsError(f"drop needs --url, the database of {identity.table}, as in the stream's option url")
    # Where the stream has nothing in the database, any URL will do: it is not asked.
    source = source_of(identity.upstream, identity.table, identity.key.names, url=url or "postgresql://", user=user)
    options = parse({**source, "stateDir": str(folder), "stagingDir": staging_dir})
    # The usual place too: the stream may have got a stagingDir later, and if a wrong one is named no rows are to stay.
    usual = parse({**source, "stateDir": str(folder)}).staging_dir
    places = dict.fromkeys([options.staging_dir, usual])
    staged = {place: Staging(place).of_stream(identity.stream_id) for place in places}
    _require_reachable(staged.values())
    named = ", ".join(_detached(options, identity.properties) if placed else ())
    with _rewording(f"dropped {named}; staged chunks are left" if named else "staged chunks are left"):
        emptied = [place for place, staging in staged.items() if staging.forget_all()]
    with suppress(OSError):  # Where it was not made, or holds what is not the stream's.
        Path(usual).rmdir()
    _forget_state(folder)
    lines = [f"dropped stream {identity.stream_id} of {identity.table}{f': {named}' if named else ''}"]
    lines += [f"removed its staged chunks from {place}" for place in emptied]
    if options.staging_dir not in emptied:
        lines.append(
            f"found no staged chunks of it in {options.staging_dir}; if it had another stagingDir, remove the folder "
            f"{identity.stream_id} there"
        )
    return lines


def _recorded(folder: Path) -> StreamIdentity:
    """The stream whose state the directory holds."""
    if not (folder / STATE_FILE).exists():  # Opening it would make it.
        raise StateError(f"{STATE_FILE} in {folder} is gone: another `backfill drop` has removed it")
    with open_store(folder) as store:
        identity = store.identity()
    if identity is None:
        raise StateError(
            f"{folder / STATE_FILE} has no stream, as after a start that failed; nothing was dropped. Delete the "
            f"folder. {WHERE_LOST}"
        )
    return identity


def _require_reachable(staged: Iterable[Staging]) -> None:
    """Raises, before anything is dropped, where a store that may hold chunks does not answer."""
    with _rewording("nothing was dropped"):
        for staging in staged:
            staging.of_batch(0).manifest()


def _detached(options: Options, bookmark: Bookmark) -> tuple[str, ...]:
    """Removes what the stream has in its database. Returns the names of what was removed."""
    with closing(open_upstream(options, patience=PATIENCE)) as upstream:
        return upstream.detach(bookmark)


def _forget_state(folder: Path) -> None:
    with changing(folder):  # Else `pause` might read what the stream was told before this, and write it after.
        with open_store(folder) as store:
            store.reset()
        remove_files(folder)


@contextmanager
def _rewording(done: str) -> Iterator[None]:
    """Rewords errors about staged chunks, which tell how to go on with the query: now it is not to go on."""
    try:
        yield
    except (StagingError, StagingUnreachableError) as error:
        raise type(error)(
            f"{done}: {error.message}. Run `backfill drop` again, and not the query; if the store is gone for good, "
            "run it without --staging-dir"
        ) from error
