"""The methods of `nixl_agent` for notifications and metadata."""

from __future__ import annotations

from collections.abc import Sequence

from torch_axon.nixl import _bindings as nixlBind
from torch_axon.nixl._agent import Bytes
from torch_axon.nixl._enums import nixl_mem_t
from torch_axon.nixl._lists import nixlRegDList, nixlXferDList

DEFAULT_COMM_PORT = nixlBind.DEFAULT_COMM_PORT

Names = Sequence[str]
NONE: Names = ()


class Exchanging:
    """What agents tell each other beside the data. `nixl_agent` sets the attributes."""

    agent: nixlBind.nixlAgent
    notifs: dict[str, list[bytes]]
    backends: dict[str, int]

    def _handles(self, backends: Names) -> list[int]:
        return [self.backends[name] for name in backends]

    # ---- Notifications

    def get_new_notifs(self, backends: Names = NONE) -> dict[str, list[bytes]]:
        """Takes the notifications that have arrived, by the name of the sender. Never waits."""
        return self.agent.getNotifs({}, self._handles(backends))

    def update_notifs(self, backends: Names = NONE) -> dict[str, list[bytes]]:
        """Adds the notifications that have arrived to `notifs`, and returns all of these."""
        self.notifs = self.agent.getNotifs(self.notifs, self._handles(backends))
        return self.notifs

    def check_remote_xfer_done(
        self,
        remote_agent_name: str | bytes,
        lookup_tag: bytes,
        backends: Names = NONE,
        tag_is_prefix: bool = True,
    ) -> bool:
        """Returns whether an agent has sent a notification, and takes it.

        Args:
            remote_agent_name: the agent
            lookup_tag: what the notification begins with, or contains
            backends: names of backends
            tag_is_prefix: whether it must begin with `lookup_tag`

        Raises:
            TypeError: `lookup_tag` is not bytes
        """
        if not isinstance(lookup_tag, bytes):
            raise TypeError(f"lookup_tag is of type {type(lookup_tag).__name__}; allowed: bytes")
        name = remote_agent_name.decode() if isinstance(remote_agent_name, bytes) else remote_agent_name
        messages = self.update_notifs(backends).get(name, [])
        for i, message in enumerate(messages):
            if message.startswith(lookup_tag) if tag_is_prefix else lookup_tag in message:
                del messages[i]
                return True
        return False

    def send_notif(self, remote_agent_name: str | bytes, notif_msg: Bytes, backend: str | None = None) -> None:
        """Sends an agent a notification, without waiting for its arrival.

        Raises:
            nixlNotFoundError: the agent is not known
            nixlRemoteDisconnectError: it has ended, or cannot be reached
        """
        self.agent.genNotif(remote_agent_name, notif_msg, self._handles([backend] if backend else []))

    # ---- Metadata

    def get_agent_metadata(self) -> bytes:
        """Returns how others connect to this agent, and all memory that it has registered so far.

        The bytes are a secret: a process that has them can use that memory.
        """
        return self.agent.getLocalMD()

    def get_partial_agent_metadata(
        self, descs: nixlRegDList, inc_conn_info: bool = False, backends: Names = NONE
    ) -> bytes:
        """Returns some of the registered memory, and how others connect if `inc_conn_info` is true.

        Raises:
            nixlNotFoundError: a descriptor is not registered
        """
        return self.agent.getLocalPartialMD(descs, inc_conn_info, self._handles(backends))

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Takes the metadata of another agent. What is known of it already stays valid.

        Returns:
            Its name, as bytes.

        Raises:
            nixlMismatchError: the bytes are not the metadata of an agent of this module
            nixlInvalidParamError: they are this agent's own
            nixlNotAllowedError: another agent of this name is known; remove that first
            nixlNotFoundError: they are partial, and the agent is not known
        """
        return self.agent.loadRemoteMD(metadata)

    def remove_remote_agent(self, agent: str | bytes) -> None:
        """Forgets an agent. What was prepared for it becomes invalid. One that is not known is ignored."""
        self.agent.invalidateRemoteMD(agent)

    def send_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Gives the agent that listens at an address this agent's metadata, in the background.

        Raises:
            nixlInvalidParamError: there is no address
        """
        self.agent.sendLocalMD(ip_addr, port)

    def send_partial_agent_metadata(
        self,
        descs: nixlRegDList,
        inc_conn_info: bool = False,
        backends: Names = NONE,
        ip_addr: str = "",
        port: int = DEFAULT_COMM_PORT,
        label: str = "",
    ) -> None:
        """Gives the agent that listens at an address partial metadata, in the background.

        Raises:
            nixlNotFoundError: a descriptor is not registered
            nixlInvalidParamError: there is no address
        """
        self.agent.sendLocalPartialMD(descs, inc_conn_info, self._handles(backends), ip_addr, port, label)

    def fetch_remote_metadata(
        self, remote_agent: str, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = ""
    ) -> None:
        """Takes the metadata of the agent that listens at an address, in the background.

        Raises:
            nixlInvalidParamError: there is no address
        """
        self.agent.fetchRemoteMD(remote_agent, ip_addr, port, label)

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Lets the agent that listens at an address forget this one, in the background.

        Raises:
            nixlInvalidParamError: there is no address
        """
        self.agent.invalidateLocalMD(ip_addr, port)

    def check_remote_metadata(self, agent: str | bytes, descs: nixlXferDList | None = None) -> bool:
        """Returns whether an agent is known, and has registered all descriptors."""
        wanted = nixlXferDList(nixl_mem_t.DRAM_SEG) if descs is None else descs
        return self.agent.checkRemoteMD(agent, wanted) == nixlBind.NIXL_SUCCESS
