"""A table's features: how `deltalake` names those that it does not know, and how Delta's SQL names them."""

from __future__ import annotations

import re
from typing import Final

_REFUSED: Final = re.compile(
    r"[^'\"]*(?:Unsupported table features required: \[(.*?)\]|\bFeature '([^']+)' is not supported)"
)
"""Not behind a quotation mark, where it belongs to a row's value."""

_UNHEARD_OF: Final = re.compile(r"Unknown\(\"(.*)\"\)")

_CALLED: Final = {"ClusteredTable": "clustering", "TimestampWithoutTimezone": "timestampNtz"}
"""Features for which `deltalake` (1.6) has a word of its own; its other words are the protocol's, but capitalized."""


def not_known(text: str) -> tuple[str, ...]:
    """The features that an error with this text says `deltalake` does not know, by the protocol's names; or none."""
    found = _REFUSED.match(text)
    if found is None:
        return ()
    return (found[2],) if found[2] else tuple(_of_protocol(name) for name in found[1].split(", "))


def _of_protocol(name: str) -> str:
    unheard_of = _UNHEARD_OF.fullmatch(name)
    if unheard_of is not None:
        return unheard_of[1]
    called = _CALLED.get(name, name[:1].lower() + name[1:])
    return re.sub("Preview$", "-preview", called)


def dropping(uri: str, features: tuple[str, ...]) -> str:
    """The SQL that drops these features, one statement for each. Delta's grammar has no hyphen in a bare name."""
    names = (name if re.fullmatch(r"\w+", name) else f"'{name}'" for name in features)
    return "; ".join(f"ALTER TABLE delta.`{uri}` DROP FEATURE {name}" for name in names)
