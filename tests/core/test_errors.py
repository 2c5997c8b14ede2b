"""Errors travel between processes."""

from __future__ import annotations

import pickle

import pytest

from backfill import errors
from backfill.errors import BackfillError, DefiniteError, TransientError


def below(base: type[BackfillError]) -> list[type[BackfillError]]:
    return [kind for child in base.__subclasses__() for kind in (child, *below(child))]


KINDS = [BackfillError, *below(BackfillError)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling(kind: type[BackfillError], protocol: int) -> None:
    error = kind("slot 'é' is gone; do 'x'")
    again = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301 - our own bytes
    assert type(again) is kind
    assert (again.message, str(again), again.args) == (error.message, str(error), error.args)


@pytest.mark.parametrize("kind", [*below(DefiniteError), *below(TransientError)])
def test_every_error_is_definite_or_transient_and_not_both(kind: type[BackfillError]) -> None:
    assert issubclass(kind, DefiniteError) != issubclass(kind, TransientError)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_says_in_one_place_what_it_is_for(kind: type[BackfillError]) -> None:
    assert kind.__module__ == errors.__name__
    assert kind.__doc__
