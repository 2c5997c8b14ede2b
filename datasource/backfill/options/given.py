"""What the user gave, each option by itself."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from backfill.options.listed import BY_KEY, CALLED_ELSEWHERE, OPTIONS, Option
from backfill.options.texts import as_refused, require_readable

T = TypeVar("T")

# Spark adds these to what the user gave.
_SPARKS_OWN: Final = frozenset({"provider", "owner", "location", "is_managed_location", "external"})


class Values:
    """The values of options, given or by default. An option whose text is wrong by itself has none."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __setitem__(self, option: Option[T], value: T) -> None:
        self._values[option.name] = value

    def __getitem__(self, option: Option[T]) -> T:
        """The value; raises KeyError where the option's text is wrong."""
        value: T = self._values[option.name]
        return value

    def get(self, option: Option[T]) -> T | None:
        """The value; None where the option's text is wrong."""
        return self._values.get(option.name)

    def has(self, option: Option[Any]) -> bool:
        """Whether the option has a value, and another one than where it is left out."""
        return self.get(option) not in (None, option.value(option.default))

    def lacks(self, option: Option[Any]) -> bool:
        """Whether the option was left out, or is blank, and has no default; False where its text is wrong."""
        return option.name in self._values and not self._values[option.name]


def each_by_itself(given: Mapping[str, str]) -> tuple[Values, list[str]]:
    """Each option's value, as far as it is right, and what is wrong with the others."""
    problems = [_unknown(key) for key in given if key.lower() not in BY_KEY and key.lower() not in _SPARKS_OWN]
    texts = {key.lower(): value for key, value in given.items()}
    values = Values()
    for key, option in BY_KEY.items():
        text = texts.get(key, option.default)
        try:
            require_readable(text)
            values[option] = option.value(text)
        except ValueError as error:
            shown = as_refused(text, secret=option.may_hold_secrets)
            problems.append(f"{option.name} {shown}; expected {error}")
    blank = [option.name for key, option in BY_KEY.items() if not (option.may_be_blank or texts.get(key, "-").strip())]
    problems += [f"{name} is blank; leave it out, or give it a value" for name in blank]
    return values, problems


def _unknown(key: str) -> str:
    name = key.lower()
    elsewhere = [CALLED_ELSEWHERE[name]] if name in CALLED_ELSEWHERE else []
    near = elsewhere or [BY_KEY[found].name for found in difflib.get_close_matches(name, BY_KEY, n=1, cutoff=0.6)]
    hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(o.name for o in OPTIONS)}"
    return f"unknown option {key}{hint}"
