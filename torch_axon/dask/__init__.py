"""The protocol `axon://` of Dask's `distributed`: its schedulers, workers and clients communicate over runtimes.

    cluster = LocalCluster(protocol="axon")
    client = Client("axon://10.0.0.5:8786")

The entry point group `distributed.comm.backends` names the backend, and importing this module registers it, too.
Each event loop has a runtime that connects, and each listener has one of its own. A comm is a pair of channels between
two runtimes. See docs/clients.md.
"""

from __future__ import annotations

from distributed.comm.registry import backends

from torch_axon.dask._backend import AxonBackend as AxonBackend

__all__ = ["AxonBackend"]

backends.setdefault("axon", AxonBackend())
