from __future__ import annotations

from hypothesis import HealthCheck, settings

# An example may take any time, since it is slow on a busy machine. A failure prints how to reproduce it.
settings.register_profile("patient", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
