"""The agent, with the methods of NIXL's bindings. `nixl_agent` of `_api` is what most clients use."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from torch_axon.nixl import _metadata
from torch_axon.nixl._agent_config import nixlAgentConfig
from torch_axon.nixl._enums import nixl_mem_t, nixl_status_t, nixl_xfer_op_t
from torch_axon.nixl._errors import (
    as_nixl,
    nixlInvalidParamError,
    nixlNotAllowedError,
    nixlNoTelemetryError,
    nixlNotFoundError,
    nixlNotSupportedError,
)
from torch_axon.nixl._exchange import Exchange
from torch_axon.nixl._inbox import Inbox
from torch_axon.nixl._lists import nixlRegDList, nixlRemoteDList, nixlXferDList
from torch_axon.nixl._memory import Located, MemoryMap
from torch_axon.nixl._metadata import KINDS
from torch_axon.nixl._own_memory import OwnMemory
from torch_axon.nixl._remote import RemoteAgent
from torch_axon.nixl._requests import LocalSide, RemoteSide, Request, nixlXferTelemetry, pair_up
from torch_axon.runtime import Runtime, _hosts

NIXL_INIT_AGENT = ""
BACKEND = "UCX"  # the name of the only backend, which clients of NIXL ask for
_BACKEND_HANDLE = 1
_BACKEND_PARAMETERS: dict[str, str] = {}
# A transfer ends with an error after this time, as a collective of torch.distributed does over NCCL.
_TIMEOUT_S = 600.0

T = TypeVar("T")
M = TypeVar("M")
Bytes = bytes | bytearray | str
Backends = Sequence[int]
_NO_BACKENDS: Backends = ()


class nixlAgent:
    """An agent: it registers memory, and reads and writes the registered memory of other agents.

    More than 30 methods: these are NIXL's.

    Names are str or bytes, and messages str, bytes or bytearray. Backends are accepted, and ignored. All methods may be
    called on any thread, and raise the exceptions of `_errors`.

    Args:
        name: its name, 1 to 255 bytes
        config: its settings

    Raises:
        ValueError: the name is empty or too long
        RuntimeError: the port of the listening thread is taken
    """

    def __init__(self, name: str, config: nixlAgentConfig) -> None:
        if not name:
            raise ValueError("Agent needs a non-empty name")
        self._name = name
        self._host = _hosts.own_host()
        self._has_telemetry = _has_telemetry(config.captureTelemetry)
        self._has_backend = False
        self._runtime = Runtime(name, secret=os.urandom(32), timeout=_TIMEOUT_S)
        self._runtime.listen("0.0.0.0")
        self._inbox = Inbox(self._runtime)
        self._memory = OwnMemory(self._runtime)
        self._lock = threading.RLock()  # guards the following members
        self._remotes: dict[str, RemoteAgent] = {}
        self._itself: RemoteAgent | None = None
        self._numbers: Iterator[int] = itertools.count(1)
        self._sides: dict[int, LocalSide | RemoteSide] = {}
        self._requests: dict[int, Request] = {}
        self._exchange: Exchange | None = None
        if config.useListenThread:
            try:
                self._metadata_exchange().listen(config.listenPort)
            except RuntimeError:
                self.close()
                raise

    def __del__(self) -> None:
        if hasattr(self, "_inbox"):
            self.close()

    def close(self) -> None:
        """Ends the agent, its transfers and its registrations."""
        exchange: Exchange | None = getattr(self, "_exchange", None)  # missing if the agent could not be made
        if exchange is not None:
            exchange.close()
        self._inbox.close()
        self._runtime.close(drain=False)

    # ---- Backends

    def getAvailPlugins(self) -> list[str]:
        return [BACKEND]

    def getPluginParams(self, plugin: str) -> tuple[dict[str, str], list[str]]:
        """Returns the parameters and the kinds of memory of a backend."""
        if plugin != BACKEND:
            raise nixlNotFoundError(f"there is no backend {plugin!r}; allowed: {BACKEND!r}")
        return dict(_BACKEND_PARAMETERS), [kind.name for kind in KINDS]

    def createBackend(self, plugin: str, params: Mapping[str, str]) -> int:
        """Creates a backend. All parameters are accepted, and ignored."""
        self.getPluginParams(plugin)
        for key, value in params.items():
            if not isinstance(value, str):
                raise TypeError(f"createBackend: parameter {key!r} is of type {type(value).__name__}; allowed: str")
        if self._has_backend:
            raise nixlInvalidParamError(f"the backend {plugin!r} exists already")
        self._has_backend = True
        return _BACKEND_HANDLE

    def getBackendParams(self, handle: int) -> tuple[dict[str, str], list[str]]:
        return self.getPluginParams(BACKEND)

    # ---- Registered memory

    def registerMem(self, descs: nixlRegDList, backends: Backends = _NO_BACKENDS) -> nixl_status_t:
        """Registers memory, so that other agents can read and write it."""
        _check_list(descs, nixlRegDList)
        if not self._has_backend:
            raise nixlNotFoundError(f"the agent has no backend; create_backend({BACKEND!r}) makes one")
        self._memory.register(descs)
        return nixl_status_t.NIXL_SUCCESS

    def deregisterMem(self, descs: nixlRegDList, backends: Backends = _NO_BACKENDS) -> nixl_status_t:
        """Ends registrations. Other agents cannot touch the memory any more when this returns."""
        _check_list(descs, nixlRegDList)
        self._memory.deregister(descs)
        return nixl_status_t.NIXL_SUCCESS

    def queryMem(self, descs: nixlRegDList, backend: int) -> list[dict[str, str] | None]:
        raise nixlNotSupportedError("queries are for backends of files and objects, which this module lacks")

    # ---- Metadata

    def getLocalMD(self) -> bytes:
        """Returns how others connect to the agent, and all memory that it has registered."""
        return self._metadata(None, is_reachable=True).encode()

    def getLocalPartialMD(
        self, descs: nixlRegDList, inc_conn_info: bool = False, backends: Backends = _NO_BACKENDS
    ) -> bytes:
        """Returns some of the registered memory, and how others connect if `inc_conn_info` is true."""
        _check_list(descs, nixlRegDList)
        return self._metadata(descs, inc_conn_info).encode()

    def _metadata(self, descs: nixlRegDList | None, is_reachable: bool) -> _metadata.Metadata:
        if not self._has_backend:
            raise nixlInvalidParamError(f"the agent has no backend; create_backend({BACKEND!r}) makes one")
        state, table = self._memory.table(descs)
        addresses = [self._runtime.address_at(host) for host in _hosts.own_addresses()] if is_reachable else []
        return _metadata.Metadata(
            self._name, self._runtime.incarnation, self._host, state, descs is None, addresses, table
        )

    def loadRemoteMD(self, blob: Bytes) -> bytes:
        """Takes the metadata of another agent, and returns its name. What is known of it already stays valid."""
        metadata = _metadata.decode(_as_bytes(blob, "metadata"))
        if metadata.incarnation == self._runtime.incarnation:
            raise nixlInvalidParamError("these metadata are the agent's own")
        if metadata.name == self._name:
            raise nixlNotAllowedError(f"another agent has the name of this one, '{self._name}'")
        with self._lock:
            known = self._remotes.get(metadata.name)
            if known is None and not metadata.addresses:
                raise nixlNotFoundError(f"partial metadata of agent '{metadata.name}', which is not known yet")
            if known is None:
                self._remotes[metadata.name] = RemoteAgent(metadata, self._runtime, self._host)
            elif known.incarnation != metadata.incarnation:
                raise nixlNotAllowedError(f"agent '{metadata.name}' is known, and another one; remove it first")
            else:
                known.add(metadata)
        return metadata.name.encode()

    def invalidateRemoteMD(self, agent: str | bytes) -> nixl_status_t:
        """Forgets an agent. What was prepared for it becomes invalid, and its transfers fail."""
        with self._lock:
            remote = self._remotes.pop(_as_name(agent), None)
        if remote is None:
            return nixl_status_t.NIXL_ERR_NOT_FOUND
        remote.remove()
        return nixl_status_t.NIXL_SUCCESS

    def checkRemoteMD(self, agent: str | bytes, descs: nixlXferDList) -> nixl_status_t:
        """Returns NIXL_SUCCESS if the agent is known, and has registered these descriptors."""
        _check_list(descs, nixlXferDList)
        try:
            remote = self._remote(agent)
            if remote is self._itself and self._memory.is_empty():
                return nixl_status_t.NIXL_ERR_NOT_FOUND
            if not descs.isEmpty():
                remote.memory(descs.getType()).locate(descs.rows())
        except (nixlNotFoundError, nixlInvalidParamError):
            return nixl_status_t.NIXL_ERR_NOT_FOUND
        return nixl_status_t.NIXL_SUCCESS

    def _remote(self, agent: str | bytes) -> RemoteAgent:
        name = _as_name(agent)
        known = self._remotes.get(name)
        if known is not None:
            return known
        if name != self._name:
            raise nixlNotFoundError(f"agent '{name}' is not known; add_remote_agent() takes its metadata")
        metadata = _metadata.decode(self.getLocalMD())
        with self._lock:
            if self._itself is None:
                self._itself = RemoteAgent(metadata, self._runtime, self._host)
            self._itself.add(metadata)
            return self._itself

    # ---- Metadata over the network

    def sendLocalMD(self, ip_addr: str = "", port: int = 0) -> None:
        self._metadata_exchange().send(_required(ip_addr), port, self.getLocalMD())

    def sendLocalPartialMD(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: Backends = _NO_BACKENDS,
        ip_addr: str = "",
        port: int = 0,
        label: str = "",
    ) -> None:
        blob = self.getLocalPartialMD(descs, inc_conn_info)
        self._metadata_exchange().send(_required(ip_addr), port, blob)

    def fetchRemoteMD(self, remote_agent: str, ip_addr: str = "", port: int = 0, label: str = "") -> None:
        self._metadata_exchange().fetch(_required(ip_addr), port)

    def invalidateLocalMD(self, ip_addr: str = "", port: int = 0) -> None:
        self._metadata_exchange().invalidate(_required(ip_addr), port, self._name)

    def _metadata_exchange(self) -> Exchange:
        with self._lock:
            if self._exchange is None:
                self._exchange = Exchange(
                    self._name,
                    _weakly(self, "getLocalMD"),
                    _weakly(self, "loadRemoteMD"),
                    _weakly(self, "invalidateRemoteMD"),
                )
            return self._exchange

    # ---- Transfers

    def makeConnection(self, agent: str | bytes, backends: Backends = _NO_BACKENDS) -> nixl_status_t:
        """Connects to an agent, which its first transfer would do otherwise."""
        self._remote(agent).peer()
        return nixl_status_t.NIXL_SUCCESS

    def prepXferDlist(self, *args: Any, **kwargs: Any) -> int:
        """Prepares one side of transfers: (agent_name, descs), (descs,) for local memory, or (agent_name, mem_type,
        descs) with strided descriptors, [n, 5] of address, bytes, device, stride and count."""
        kwargs.pop("backend", None)
        names = {1: ("descs",), 3: ("agent_name", "mem_type", "descs")}.get(
            len(args) + len(kwargs), ("agent_name", "descs")
        )
        given = dict(zip(names, args, strict=False)) | kwargs
        if set(given) != set(names):
            raise TypeError(f"prepXferDlist: arguments are {', '.join(given)}; allowed: {', '.join(names)}")
        return self._numbered(self._sides, self._side(**given))

    def _side(
        self, descs: Any, agent_name: str | bytes = NIXL_INIT_AGENT, mem_type: nixl_mem_t | None = None
    ) -> LocalSide | RemoteSide:
        if mem_type is None:
            _check_list(descs, nixlXferDList)
        kind = descs.getType() if mem_type is None else nixl_mem_t(mem_type)

        def located(memory: MemoryMap[M]) -> Located[M]:
            return memory.locate(descs.rows()) if mem_type is None else memory.locate_strided(descs)

        if _as_name(agent_name) == NIXL_INIT_AGENT:
            return LocalSide(located(self._memory.of_kind(kind)))
        remote = self._remote(agent_name)
        return RemoteSide(remote, located(remote.memory(kind)))

    def makeXferReq(
        self,
        operation: nixl_xfer_op_t,
        local_side: int,
        local_indices: Any,
        remote_side: int,
        remote_indices: Any,
        notif_msg: Bytes = b"",
        backend: Backends = _NO_BACKENDS,
        skip_desc_merg: bool = False,
    ) -> int:
        """Makes a transfer of prepared blocks, by their numbers. Neighbours on both sides always move as one."""
        local, remote = self._sides.get(local_side), self._sides.get(remote_side)
        if not isinstance(local, LocalSide) or not isinstance(remote, RemoteSide):
            raise nixlInvalidParamError("a side is released, or local where it should be remote, or the reverse")
        remote.check_known()
        ids = pair_up(local, local_indices, remote, remote_indices)
        return self._numbered(
            self._requests,
            Request(operation, (local, remote), ids, _as_bytes(notif_msg, "notif_msg"), counts_merged=True),
        )

    def createXferReq(
        self,
        operation: nixl_xfer_op_t,
        local_descs: nixlXferDList,
        remote_descs: nixlXferDList,
        remote_agent: str | bytes,
        notif_msg: Bytes = b"",
        backend: Backends = _NO_BACKENDS,
    ) -> int:
        """Makes a transfer of all descriptors of two lists, in pairs."""
        _check_list(local_descs, nixlXferDList)
        _check_list(remote_descs, nixlXferDList)
        here, there = local_descs.rows(), remote_descs.rows()
        if not np.array_equal(here[:, 1], there[:, 1]):
            raise nixlInvalidParamError("the local and the remote descriptors differ in number or length")
        local = LocalSide(self._memory.of_kind(local_descs.getType()).locate(here))
        remote = self._remote(remote_agent)
        sides = local, RemoteSide(remote, remote.memory(remote_descs.getType()).locate(there))
        ids = np.arange(len(here), dtype=np.int32)
        return self._numbered(
            self._requests,
            Request(operation, sides, (ids, ids), _as_bytes(notif_msg, "notif_msg"), counts_merged=False),
        )

    def _numbered(self, table: dict[int, T], item: T) -> int:
        number = next(self._numbers)
        table[number] = item
        return number

    def postXferReq(self, reqh: int, notif_msg: Bytes = b"") -> nixl_status_t:
        """Starts a transfer, also again. A new notification takes the place of the former one."""
        return self._known(reqh).post(_as_bytes(notif_msg, "notif_msg"))

    def getXferStatus(self, reqh: int) -> nixl_status_t:
        return self._known(reqh).status()

    def getXferTelemetry(self, reqh: int) -> nixlXferTelemetry:
        request = self._known(reqh)
        if not self._has_telemetry:
            raise nixlNoTelemetryError("telemetry is off; capture_telemetry or NIXL_TELEMETRY_ENABLE=y turns it on")
        return request.telemetry()

    def estimateXferCost(self, req_handle: int) -> tuple[int, int, int]:
        """Returns no estimate: 0 µs, 0 µs, and that no method was used."""
        self._known(req_handle).sides[1].check_known()
        return 0, 0, -1

    def queryXferBackend(self, reqh: int) -> int:
        self._known(reqh)
        return _BACKEND_HANDLE

    def releaseXferReq(self, reqh: int) -> nixl_status_t:
        """Forgets a transfer, and cancels it if it is under way."""
        request = self._requests.pop(reqh, None)
        if request is None:
            raise nixlInvalidParamError(f"there is no transfer {reqh}")
        request.cancel()
        return nixl_status_t.NIXL_SUCCESS

    def releasedDlistH(self, handle: int) -> nixl_status_t:
        """Forgets a prepared side. Transfers that use it go on."""
        if self._sides.pop(handle, None) is None:
            raise nixlInvalidParamError(f"there is no prepared list {handle}")
        return nixl_status_t.NIXL_SUCCESS

    def _known(self, handle: int) -> Request:
        request = self._requests.get(handle)
        if request is None:
            raise nixlInvalidParamError(f"there is no transfer {handle}; it was released")
        return request

    def prepMemView(self, dlist: nixlXferDList | nixlRemoteDList, backends: Backends = _NO_BACKENDS) -> int:
        raise nixlNotSupportedError("views of memory are for UCX's device API, which this module lacks")

    def releaseMemView(self, mvh: int) -> None:
        raise nixlNotSupportedError("views of memory are for UCX's device API, which this module lacks")

    # ---- Notifications

    def getNotifs(
        self, notif_map: Mapping[str, Sequence[bytes]], backends: Backends = _NO_BACKENDS
    ) -> dict[str, list[bytes]]:
        """Returns the given notifications, and after them the new ones, by the name of their agent."""
        notifications = {name: list(messages) for name, messages in notif_map.items()}
        for name, message in self._inbox.take():
            notifications.setdefault(name, []).append(message)
        return notifications

    def genNotif(self, remote_agent: str | bytes, msg: Bytes, backends: Backends = _NO_BACKENDS) -> nixl_status_t:
        """Sends an agent a notification, without waiting for its arrival."""
        message = _as_bytes(msg, "msg")
        try:
            self._inbox.send(self._remote(remote_agent).peer(), message)
        except ValueError as error:
            raise as_nixl(error) from error
        return nixl_status_t.NIXL_SUCCESS


def _has_telemetry(is_wanted: bool) -> bool:
    value = os.environ.get("NIXL_TELEMETRY_ENABLE", "").lower()
    return value in ("y", "yes", "1", "true", "on") or (is_wanted and not value)


def _weakly(agent: nixlAgent, method: str) -> Callable[..., Any]:
    """Returns a method that does not keep the agent alive."""
    found = weakref.ref(agent)

    def call(*arguments: Any) -> Any:
        if (alive := found()) is None:
            raise nixlNotFoundError("the agent has ended")
        return getattr(alive, method)(*arguments)

    return call


def _as_name(agent: str | bytes) -> str:
    name = agent.decode() if isinstance(agent, bytes) else agent
    if not isinstance(name, str):
        raise TypeError(f"an agent's name is of type {type(agent).__name__}; allowed: str and bytes")
    return NIXL_INIT_AGENT if name == "NIXL_INIT_AGENT" else name


def _as_bytes(message: Bytes, what: str) -> bytes:
    if isinstance(message, str):
        return message.encode()
    if isinstance(message, bytes | bytearray):
        return bytes(message)
    raise TypeError(f"{what} is of type {type(message).__name__}; allowed: str, bytes and bytearray")


def _check_list(descs: object, kind: type) -> None:
    if not isinstance(descs, kind):
        raise TypeError(f"descs is of type {type(descs).__name__}; allowed: {kind.__name__}")


def _required(ip_addr: str) -> str:
    if not ip_addr:
        raise nixlInvalidParamError("ip_addr is empty; allowed: an address, since this module does not use etcd")
    return ip_addr
