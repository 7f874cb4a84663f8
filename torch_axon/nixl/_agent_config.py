"""The settings of an agent of the bindings."""

from __future__ import annotations

from datetime import timedelta

from torch_axon.nixl._enums import nixl_thread_sync_t

DEFAULT_COMM_PORT = 8888


class nixlAgentConfig:
    """The settings of an agent. It runs a thread of its own in any case, and may be used by any thread.

    Attributes:
        useProgThread, numWorkers, pthrDelay, lthrDelay, etcdWatchTimeout: have no effect
        useListenThread: whether others may exchange metadata with the agent at `listenPort`
        listenPort: the TCP port for that; 0: any free one
        syncMode: has no effect
        captureTelemetry: whether `getXferTelemetry` works; NIXL_TELEMETRY_ENABLE overrides it
    """

    def __init__(
        self,
        useProgThread: bool = False,
        useListenThread: bool = False,
        listenPort: int = DEFAULT_COMM_PORT,
        syncMode: nixl_thread_sync_t = nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE,
        numWorkers: int = 1,
        pthrDelay: int = 0,
        lthrDelay: int = 100_000,
        captureTelemetry: bool = False,
    ) -> None:
        self.useProgThread = useProgThread
        self.useListenThread = useListenThread
        self.listenPort = listenPort
        self.syncMode = syncMode
        self.numWorkers = numWorkers
        self.pthrDelay = pthrDelay
        self.lthrDelay = lthrDelay
        self.captureTelemetry = captureTelemetry
        self.etcdWatchTimeout = timedelta(seconds=5)
