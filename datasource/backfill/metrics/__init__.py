"""Figures as Prometheus reads them.

server          metrics over HTTP
listed          the metrics there are
exposition      samples as text
"""

from __future__ import annotations
