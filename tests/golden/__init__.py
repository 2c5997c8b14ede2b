"""What earlier releases have written. The files are never edited; a new version gets files of its own."""

from __future__ import annotations
