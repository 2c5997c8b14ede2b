"""What is told of PostgreSQL's errors, without any value of a row."""

from __future__ import annotations

import re

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.errors import DatabaseSetupError, DefiniteError
from backfill.upstream.postgres.session.failures import about_init_statement, translated, translating
from tests.postgres.raised import VALUE, from_adbc, from_psycopg


@pytest.mark.parametrize("state", ["P0001", "P0004"])
def test_what_somebodys_function_says_of_a_row_is_not_shown(state: str) -> None:
    for error in (from_psycopg(state, VALUE), from_adbc(state, f"ERROR:  {VALUE}", VALUE)):
        found = translated(error)
        assert type(found) is DatabaseSetupError
        assert "a function in the database raised an error in a statement" in found.message
        assert VALUE not in found.message
    assert translated(from_psycopg(state, "not here"), about_init_statement).message == f"not here ({state})"


@pytest.mark.parametrize(
    "text",
    [
        f"duplicate key value violates unique constraint\nDETAIL:  Key (name)=({VALUE}) already exists.",
        f"ERROR:  could not serialize\nDETAIL: {VALUE}\nCONTEXT: {VALUE}",
        f"ERROR:  no\nLINE 1: SELECT '{VALUE}'\n               ^",
    ],
)
@pytest.mark.parametrize("state", ["23505", "40001", "42P01", "42703", "XX000"])
def test_details_are_left_out_because_they_may_quote_rows(state: str, text: str) -> None:
    for error in (from_psycopg(state, text), from_adbc(state, text)):
        assert VALUE not in translated(error).message


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("22P02", f'invalid input syntax for type integer: "{VALUE}"'),
        ("22003", f'value "{VALUE}" is out of range for type integer'),
        ("22007", f'invalid input syntax for type timestamp: "two lines\n{VALUE}"'),
        ("22P02", f'invalid input syntax for type uuid: "a "quoted" {VALUE}"'),
        ("22P02", f"ungültige Eingabesyntax für Typ integer: »{VALUE}«"),
        ("22P02", f"syntaxe en entrée invalide pour le type integer : « {VALUE} »"),
        ("22P02", f"neplatná syntaxe vstupu pro typ integer: „{VALUE}“"),
        ("22P02", f"类型integer的输入语法无效: “{VALUE}”"),
    ],
)
def test_a_value_that_the_message_itself_quotes_is_left_out(state: str, text: str) -> None:
    for error in (from_psycopg(state, text), from_adbc(state, f"INTERNAL: ERROR:  {text}")):
        found = translated(error)
        assert isinstance(found, DefiniteError)
        assert VALUE not in found.message
        assert re.split('["«»„“]', text)[0].strip() in found.message


def test_the_drivers_error_does_not_travel_along() -> None:
    with pytest.raises(DatabaseSetupError) as caught, translating():
        raise from_psycopg("42601", f"syntax error\n{VALUE}")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_other_errors_are_not_translated() -> None:
    with pytest.raises(ZeroDivisionError), translating():
        raise ZeroDivisionError


@given(st.text(), st.sampled_from(["22P02", "40001", "XX000", "08006"]))
def test_any_text_is_translated(text: str, state: str) -> None:
    assert translated(from_psycopg(state, text)).message
    assert translated(psycopg.OperationalError(text)).message
