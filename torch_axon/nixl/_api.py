"""NIXL's Python interface: `nixl_agent` and what it takes and returns."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from torch_axon.nixl import _bindings as nixlBind
from torch_axon.nixl._agent import Bytes
from torch_axon.nixl._descriptors import KINDS, descriptors
from torch_axon.nixl._exchanging import DEFAULT_COMM_PORT as DEFAULT_COMM_PORT
from torch_axon.nixl._exchanging import NONE, Exchanging, Names
from torch_axon.nixl._handles import nixl_agent_config as nixl_agent_config
from torch_axon.nixl._handles import nixl_prepped_dlist_handle as nixl_prepped_dlist_handle
from torch_axon.nixl._handles import nixl_thread_sync_t as nixl_thread_sync_t
from torch_axon.nixl._handles import nixl_xfer_handle as nixl_xfer_handle
from torch_axon.nixl._lists import nixlRegDList, nixlRemoteDList, nixlXferDList
from torch_axon.nixl._logging import get_logger
from torch_axon.nixl._requests import nixlXferTelemetry

nixl_backend_handle = int

_log: logging.Logger = get_logger(__name__)

_OPERATIONS = {"WRITE": nixlBind.NIXL_WRITE, "READ": nixlBind.NIXL_READ}
_STATES = {nixlBind.NIXL_SUCCESS: "DONE", nixlBind.NIXL_IN_PROG: "PROC"}


class nixl_agent(Exchanging):
    """An agent: it registers memory, and reads and writes the registered memory of other agents.

    More than 30 methods: these are NIXL's.

    This class has the methods of NIXL's, with their arguments, results and exceptions. docs/nixl.md says where this
    module differs. Names of agents are str or bytes, and messages str, bytes or bytearray. Any thread may use an agent.

    Args:
        agent_name: its name, 1 to 255 bytes
        nixl_conf: its settings; None: the defaults
        instantiate_all: has no effect: there is one backend

    Attributes:
        name: its name
        agent: the agent of the bindings
        notifs: notifications that `update_notifs` has taken, by the name of the sender

    Raises:
        ValueError: the name is empty or too long
        RuntimeError: the port of the listening thread is taken
    """

    def __init__(
        self, agent_name: str, nixl_conf: nixl_agent_config | None = None, instantiate_all: bool = False
    ) -> None:
        settings = nixl_conf or nixl_agent_config()
        config = nixlBind.nixlAgentConfig()
        config.useProgThread = settings.enable_pthread
        config.useListenThread = settings.enable_listen
        config.listenPort = settings.port
        config.captureTelemetry = settings.capture_telemetry
        by_default = "STRICT" if settings.enable_listen else "NONE"
        config.syncMode = (settings.sync_mode or nixl_thread_sync_t[f"NIXL_THREAD_SYNC_{by_default}"]).value
        self.agent = nixlBind.nixlAgent(agent_name, config)
        self.name = agent_name
        self.notifs: dict[str, list[bytes]] = {}
        self.backends: dict[str, int] = {}
        self.backend_mems: dict[str, list[str]] = {}
        self.backend_options: dict[str, dict[str, str]] = {}
        self.plugin_list = self.agent.getAvailPlugins()
        self.plugin_b_options: dict[str, dict[str, str]] = {}
        self.plugin_mem_types: dict[str, list[str]] = {}
        for plugin in self.plugin_list:
            self.plugin_b_options[plugin], self.plugin_mem_types[plugin] = self.agent.getPluginParams(plugin)
        self.nixl_mems = dict(KINDS)
        self.nixl_ops = dict(_OPERATIONS)
        self._leaked_xfer_handles: list[nixl_xfer_handle] = []
        for backend in settings.backends:
            if backend in self.plugin_list:
                self.create_backend(backend)
            else:
                _log.warning("Skipping backend registration %s: there is no such backend", backend)

    # ---- Backends

    def get_plugin_list(self) -> list[str]:
        """Returns the names of the backends."""
        return self.plugin_list

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """Returns the kinds of memory that a backend supports; an empty list if there is none of this name."""
        return _found(self.plugin_mem_types, backend, "plugin") or []

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """Returns the parameters of a backend; empty if there is none of this name."""
        return _found(self.plugin_b_options, backend, "plugin") or {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """Returns the kinds of memory of a backend that was created; an empty list if it was not."""
        return _found(self.backend_mems, backend, "backend") or []

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """Returns the parameters of a backend that was created; empty if it was not."""
        return _found(self.backend_options, backend, "backend") or {}

    def create_backend(self, backend: str, initParams: Mapping[str, str] | None = None) -> None:
        """Creates a backend.

        Args:
            backend: its name
            initParams: parameters, which have no effect

        Raises:
            nixlNotFoundError: there is no such backend
            nixlInvalidParamError: it was created already
            TypeError: a parameter is not text
        """
        self.backends[backend] = self.agent.createBackend(backend, initParams or {})
        self.backend_options[backend], self.backend_mems[backend] = self.agent.getBackendParams(self.backends[backend])

    # ---- Registered memory

    def register_memory(self, reg_list: Any, mem_type: str | None = None, backends: Names = NONE) -> nixlRegDList:
        """Registers memory, so that other agents that have this agent's metadata can read and write it.

        Tensors are kept until they are deregistered. Memory that is named by its address must stay valid until then.

        Args:
            reg_list: what `get_reg_descs` takes
            mem_type: as for `get_reg_descs`
            backends: names of backends

        Returns:
            The descriptors, for `deregister_memory`.

        Raises:
            TypeError: these are no descriptors
            nixlNotFoundError: the agent has no backend for this kind of memory
            nixlBackendError: the memory cannot be registered
        """
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs is None:
            raise TypeError("register_memory: reg_list is not what get_reg_descs takes; the log says why")
        self.agent.registerMem(descs, self._handles(backends))
        return descs

    def deregister_memory(self, dereg_list: nixlRegDList, backends: Names = NONE) -> None:
        """Ends registrations. No other agent can touch the memory any more when this returns.

        Args:
            dereg_list: descriptors that were registered
            backends: names of backends

        Raises:
            TypeError: it is not a nixlRegDList
            nixlNotFoundError: one of them is not registered
            nixlBackendError: other agents still use the memory; the text names them
        """
        self.agent.deregisterMem(dereg_list, self._handles(backends))

    def query_memory(self, reg_list: Any, backend: str, mem_type: str | None = None) -> list[dict[str, str] | None]:
        """Asks a backend of files or objects about them. This module has no such backend.

        Raises:
            ValueError: the backend was not created
            nixlNotSupportedError: it is not one of files
        """
        if backend not in self.backends:
            raise ValueError(f"query_memory: backend {backend!r} was not created; allowed: {list(self.backends)}")
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs is None:
            raise TypeError("query_memory: reg_list is not what get_reg_descs takes; the log says why")
        return self.agent.queryMem(descs, self.backends[backend])

    # ---- Transfers

    def make_connection(self, remote_agent: str | bytes, backends: Names = NONE) -> None:
        """Connects to an agent, which its first transfer would do otherwise.

        Raises:
            nixlNotFoundError: the agent is not known
            nixlRemoteDisconnectError: it cannot be reached
        """
        self.agent.makeConnection(remote_agent, self._handles(backends))

    def prep_xfer_dlist(
        self, agent_name: str | bytes, xfer_list: Any, mem_type: str | None = None, backends: Names = NONE
    ) -> nixl_prepped_dlist_handle:
        """Prepares one side of transfers whose blocks are then named by their numbers.

        Args:
            agent_name: "" or "NIXL_INIT_AGENT" for memory of this agent; or the name of the agent that has the memory
            xfer_list: what `get_xfer_descs` takes; or a NumPy array [n, 5] of uint64 or int64 of address, bytes,
                device, stride and count, whose blocks are numbered row by row
            mem_type: as for `get_xfer_descs`; required for [n, 5]
            backends: names of backends

        Raises:
            TypeError, ValueError: these are no descriptors
            nixlNotFoundError: a block does not lie within registered memory, or the agent is not known
        """
        backend_handles = self._handles(backends)
        if isinstance(xfer_list, np.ndarray) and xfer_list.ndim == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise ValueError("Please specify a mem type for strided descriptors")
            handle = self.agent.prepXferDlist(agent_name, self.nixl_mems[mem_type], xfer_list, backend=backend_handles)
            return nixl_prepped_dlist_handle(self.agent, handle)
        descs = self.get_xfer_descs(xfer_list, mem_type)
        if descs is None:
            raise TypeError("prep_xfer_dlist: xfer_list is not what get_xfer_descs takes; the log says why")
        return nixl_prepped_dlist_handle(
            self.agent, self.agent.prepXferDlist(agent_name, descs, backend=backend_handles)
        )

    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: Any,
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: Any,
        notif_msg: Bytes = b"",
        backends: Names = NONE,
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """Makes a transfer of the i-th local block from or to the i-th remote block, for all i.

        Args:
            operation: "READ" or "WRITE"
            local_xfer_side: a local side
            local_indices: [n], numbers of its blocks: a list, or a NumPy array of integers
            remote_xfer_side: a side of another agent
            remote_indices: [n], numbers of its blocks
            notif_msg: what the other agent is told at the end; empty: nothing
            backends: names of backends
            skip_desc_merge: has no effect: neighbours on both sides always move as one

        Raises:
            KeyError: the operation is unknown
            nixlInvalidParamError: the numbers of indices differ or are 0, one is out of range, or lengths differ
            nixlNotFoundError: the other agent was removed
        """
        operation_code = self.nixl_ops[operation]
        sides = local_xfer_side._handle, local_indices, remote_xfer_side._handle, remote_indices
        number = self.agent.makeXferReq(operation_code, *sides, notif_msg, self._handles(backends), skip_desc_merge)
        return nixl_xfer_handle(self.agent, number)

    def initialize_xfer(
        self,
        operation: str,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: str | bytes,
        notif_msg: Bytes = b"",
        backends: Names = NONE,
    ) -> nixl_xfer_handle:
        """Makes a transfer of all descriptors of two lists, in pairs.

        Args:
            operation: "READ" or "WRITE"
            local_descs: memory of this agent
            remote_descs: as many descriptors of the same lengths
            remote_agent: the agent that has that memory
            notif_msg: what it is told at the end; empty: nothing
            backends: names of backends

        Raises:
            KeyError: the operation is unknown
            TypeError: these are no lists
            nixlInvalidParamError: the descriptors differ in number or length
            nixlNotFoundError: one does not lie within registered memory, or the agent is not known
        """
        number = self.agent.createXferReq(
            self.nixl_ops[operation], local_descs, remote_descs, remote_agent, notif_msg, self._handles(backends)
        )
        return nixl_xfer_handle(self.agent, number)

    def transfer(self, handle: nixl_xfer_handle, notif_msg: Bytes = b"") -> str:
        """Starts a transfer, also one that has ended before.

        Args:
            handle: the transfer
            notif_msg: takes the place of its message, unless it is empty

        Returns:
            "DONE" or "PROC".

        Raises:
            nixlRepostActiveError: it is under way
            nixlRemoteDisconnectError: the other agent has ended, or cannot be reached
            nixlNotFoundError: the other agent was removed, or local memory was deregistered
            Exception: others of the bindings, if it fails at once
        """
        return _STATES[self.agent.postXferReq(handle._handle, notif_msg)]

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """Returns "DONE" or "PROC". Never waits.

        Raises:
            nixlNotPostedError: it was not started
            nixlRemoteDisconnectError: the other agent has ended
            nixlNotAllowedError: the other agent has deregistered the memory
            nixlBackendError: it has failed otherwise, for example by its timeout
        """
        return _STATES[self.agent.getXferStatus(handle._handle)]

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        """Returns what a transfer that has ended has done.

        Raises:
            nixlNoTelemetryError: telemetry is off, or the transfer is under way
            nixlNotPostedError: it was not started
        """
        return self.agent.getXferTelemetry(handle._handle)

    def estimate_xfer_cost(self, handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """Returns (0, 0, "UNKNOWN"): there is no estimate."""
        duration, margin, _ = self.agent.estimateXferCost(handle._handle)
        return duration, margin, "UNKNOWN"

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """Returns the name of the backend of a transfer."""
        number = self.agent.queryXferBackend(handle._handle)
        return next(name for name, each in self.backends.items() if each == number)

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """Releases a transfer, and cancels it if it is under way. Doing so again does nothing."""
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """Releases a prepared side. Transfers that use it go on. Doing so again does nothing."""
        handle.release()

    def prep_mem_view(self, dlist: nixlXferDList | nixlRemoteDList, *, backends: Names | None = None) -> int:
        """Is not supported: it belongs to UCX's device API.

        Raises:
            nixlNotSupportedError: always
        """
        return self.agent.prepMemView(dlist, self._handles(backends or ()))

    def release_mem_view(self, mem_view: int) -> None:
        """Is not supported.

        Raises:
            nixlNotSupportedError: always
        """
        self.agent.releaseMemView(mem_view)

    # ---- Descriptors

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> nixlXferDList | None:
        """Makes descriptors for transfers.

        Args:
            descs: a contiguous tensor, or a list of such on one device. Or tuples of address, bytes and device, or a
                NumPy array [n, 3] of uint64 or int64 of these. A nixlXferDList is returned as it is.
            mem_type: "DRAM" or "cpu", "VRAM" or "cuda"; required for tuples and arrays

        Returns:
            The descriptors; None if `descs` is something else, which is logged.

        Raises:
            KeyError: `mem_type` is unknown
            IndexError: `descs` is empty
            ValueError, RuntimeError: a tuple or array has wrong elements
        """
        return descriptors(nixlXferDList, descs, mem_type)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> nixlRegDList | None:
        """Makes descriptors to register.

        Args:
            descs: as for `get_xfer_descs`; tuples have a fourth element, a text for backends
            mem_type: as for `get_xfer_descs`

        Returns, Raises: as `get_xfer_descs`.
        """
        return descriptors(nixlRegDList, descs, mem_type)

    def get_remote_descs(self, descs: Any, mem_type: str | None = None) -> nixlRemoteDList | None:
        """Makes descriptors of memory of several agents: tuples of address, bytes, device and the agent's name."""
        return descriptors(nixlRemoteDList, descs, mem_type)

    def get_serialized_descs(self, descs: nixlXferDList | nixlRegDList) -> bytes:
        """Returns descriptors as bytes, by pickle."""
        return pickle.dumps(descs)

    def deserialize_descs(self, serialized_descs: bytes) -> nixlXferDList | nixlRegDList:
        """Reads what `get_serialized_descs` has returned. Only data of this module are unpickled.

        Raises:
            nixlMismatchError: the bytes are something else
        """
        return nixlBind.unpickled(serialized_descs)


def _found(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in table:
        _log.warning("there is no %s %s", what, name)
        return None
    return table[name]
