"""UCXX with an event loop that drives the transport itself, without pause."""

import os

os.environ["UCXPY_PROGRESS_MODE"] = "polling"

from sides.ucxx import connected, device_payload, payload, serving

__all__ = ["connected", "device_payload", "payload", "serving"]
