"""The settings and the handles of `nixl_agent`."""

from __future__ import annotations

import abc
import enum
import sys

from torch_axon.nixl import _bindings as nixlBind
from torch_axon.nixl._agent import BACKEND


class nixl_thread_sync_t(enum.Enum):
    """How an agent guards itself against several threads. Has no effect: any thread may always use an agent."""

    NIXL_THREAD_SYNC_NONE = nixlBind.nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
    NIXL_THREAD_SYNC_STRICT = nixlBind.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    NIXL_THREAD_SYNC_RW = nixlBind.nixl_thread_sync_t.NIXL_THREAD_SYNC_RW
    NIXL_THREAD_SYNC_DEFAULT = nixlBind.nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT


class nixl_agent_config:
    """Settings of an agent. They may be used for several agents.

    Args:
        enable_prog_thread: has no effect: an agent always has a thread of its own
        enable_listen_thread: whether others may exchange metadata with the agent at `listen_port`
        listen_port: the TCP port for that; 0: any free one
        capture_telemetry: whether `get_xfer_telemetry` works; NIXL_TELEMETRY_ENABLE overrides it
        num_threads: has no effect
        backends: which backends the agent creates; "UCX" is the only one here, and stands for this engine
        sync_mode: has no effect

    Raises:
        TypeError: `sync_mode` is not a nixl_thread_sync_t
    """

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = nixlBind.DEFAULT_COMM_PORT,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: list[str] | None = None,
        sync_mode: nixl_thread_sync_t | None = None,
    ) -> None:
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(f"sync_mode must be a nixl_thread_sync_t (got {type(sync_mode).__name__!r})")
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.backends = [BACKEND] if backends is None else backends
        self.sync_mode = sync_mode


class _Handle(abc.ABC):
    """Something of an agent that is released once, at the latest when nothing refers to it."""

    __slots__ = ("__weakref__", "_agent", "_handle", "_released")

    def __init__(self, agent: nixlBind.nixlAgent, handle: int) -> None:
        self._agent = agent
        self._handle = handle
        self._released = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._handle:#x}, released={self._released})"

    def release(self) -> None:
        """Releases it. Doing so again does nothing."""
        if not self._released:
            self._released = True
            self._release()

    @abc.abstractmethod
    def _release(self) -> None:
        """Releases what the handle stands for."""

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.release()


class nixl_prepped_dlist_handle(_Handle):
    """One side of transfers, as `nixl_agent.prep_xfer_dlist` returns it."""

    __slots__ = ()

    def _release(self) -> None:
        self._agent.releasedDlistH(self._handle)


class nixl_xfer_handle(_Handle):
    """A transfer, as `nixl_agent.initialize_xfer` returns it. Its release cancels it if it is under way."""

    __slots__ = ()

    def _release(self) -> None:
        self._agent.releaseXferReq(self._handle)
