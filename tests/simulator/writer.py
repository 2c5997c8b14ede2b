"""Random writers that respect row locks."""

from __future__ import annotations

from random import Random

from tests.simulator.database import TRUNCATION, Change, Commit, Database, Key, Row

SPACE = 12


def random_rows(random: Random, count: int) -> dict[Key, Row]:
    keys = {(random.randrange(SPACE), random.randrange(SPACE)) for _ in range(count)}
    return {key: (*key, f"initial {key}") for key in keys}


def write(random: Random, database: Database) -> Commit | None:
    """Commits a transaction of up to six changes, some of which move keys; sometimes logs it before it is visible."""
    rows, locked = database.latest(), database.locked()
    changes: list[Change] = []
    for _ in range(random.randrange(1, 7)):
        change = _change(random, rows, locked)
        if change is None:
            continue
        if change.old is not None:
            del rows[change.old[:2]]
        if change.new is not None:
            rows[change.new[:2]] = change.new
        changes.append(change)
    return database.commit(changes, visible=random.random() > 0.2) if changes else None


def truncate(random: Random, database: Database) -> Commit | None:
    """Commits a transaction that removes all rows and inserts a few; does nothing while anything is locked."""
    if database.hidden:
        return None
    return database.commit(
        [TRUNCATION, *(Change(None, row) for row in random_rows(random, random.randrange(6)).values())]
    )


def _change(random: Random, rows: dict[Key, Row], locked: set[Key]) -> Change | None:
    free = [key for key in rows if key not in locked]
    fresh = (random.randrange(SPACE), random.randrange(SPACE))
    usable = fresh not in rows and fresh not in locked
    value = f"v{random.randrange(1 << 30)}"
    kind = random.choice(["insert", "update", "delete", "move"])
    if kind == "insert":
        return Change(None, (*fresh, value)) if usable else None
    if not free:
        return None
    old = rows[random.choice(free)]
    if kind == "delete":
        return Change(old, None)
    if kind == "move":
        return Change(old, (*fresh, old[2] if random.random() < 0.3 else value)) if usable else None
    return Change(old, old if random.random() < 0.2 else (old[0], old[1], value))


def reveal(random: Random, database: Database, *, chance: float = 0.5) -> None:
    """Makes some of the transactions visible that are logged but hidden."""
    for entry in database.hidden:
        if random.random() < chance:
            database.reveal(entry)
