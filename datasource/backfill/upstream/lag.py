"""How far a stream is behind its upstream, and what that costs the upstream."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from backfill.amounts import iso


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a stream is behind, as far as that is known: an upstream gives the figures it has."""

    complete_until: int | None = None
    """The last moment, in microseconds since 1970 by the upstream's clock, of which it is known that everything
    committed until then is in the batch that was planned last."""

    lag_seconds: int | None = None
    """How long ago that was."""

    lag_bytes: int | None = None
    """How much of the log has been written since."""

    lag_versions: int | None = None
    """How many versions of the table have been written since."""

    retained_bytes: int | None = None
    """How much of its log the upstream keeps for the stream."""

    def figures(self) -> dict[str, int | str]:
        """The known figures, under the names by which they are shown everywhere; the moment as text."""
        known: dict[str, int | str] = {name: value for name, value in asdict(self).items() if value is not None}
        if self.complete_until is not None:
            known["complete_until"] = iso(self.complete_until)
        return known


UNKNOWN: Final = Lag()
