"""Figures as Prometheus reads them.

server          metrics over HTTP
exposition      samples as text
"""

from __future__ import annotations
