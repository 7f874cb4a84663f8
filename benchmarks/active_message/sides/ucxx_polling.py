"""UCXX where the event loop itself drives the transport, without pause."""

import os

os.environ["UCXPY_PROGRESS_MODE"] = "polling"

from sides.ucxx import connected, device_payload, payload, serving

__all__ = ["connected", "device_payload", "payload", "serving"]
