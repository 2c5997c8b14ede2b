"""What a keyed target makes of a batch, without a database."""

from __future__ import annotations
