from __future__ import annotations

from hypothesis import HealthCheck, settings

# An example takes as long as it takes: on a busy machine a slow one is no failure. A failure says how to have it again.
settings.register_profile("patient", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
