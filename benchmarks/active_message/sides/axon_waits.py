"""torch_axon.Runtime in a thread without an event loop: it waits for futures."""

from sides.axon import connected, device_payload, payload, serving, synchronize

WAITS = True
__all__ = ["connected", "device_payload", "payload", "serving", "synchronize"]
