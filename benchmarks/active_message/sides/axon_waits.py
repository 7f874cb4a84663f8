"""torch_axon.Runtime from a thread without an event loop: futures are waited for."""

from sides.axon import connected, device_payload, payload, serving, synchronize

WAITS = True
__all__ = ["connected", "device_payload", "payload", "serving", "synchronize"]
