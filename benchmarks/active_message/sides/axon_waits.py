"""torch_axon.Runtime from a thread without an event loop: futures are waited for."""

from sides.axon import connected, payload, serving

WAITS = True
__all__ = ["connected", "payload", "serving"]
