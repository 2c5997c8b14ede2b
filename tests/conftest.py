from __future__ import annotations

from hypothesis import settings

# An example takes as long as it takes: on a busy machine a slow one is no failure. A failure says how to have it again.
settings.register_profile("patient", deadline=None, print_blob=True)
settings.load_profile("patient")
