"""Makes hosts: network namespaces that only TCP connects. Two are joined by a veth pair, more by a bridge."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

MOST_HOSTS = 8
ADDRESSES = ("10.213.77.1", "10.213.77.2")  # of two hosts
_SWITCH = MOST_HOSTS  # the number of the namespace that holds the bridge

# The folders of ip and tc, which not every shell has there.
os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

_ABSENT_NEIGHBOUR = "02:00:00:00:00:ff"  # a link-layer address without an owner
_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000  # linux/sched.h
_MS_PRIVATE_ALL = (1 << 18) | (1 << 14)  # MS_PRIVATE | MS_REC


class UnavailableError(RuntimeError):
    """This kernel, container or user cannot make two hosts; the text gives the reason."""


class Hosts:
    """The hosts, which exist while `two_hosts` or `several_hosts` runs."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def prefix(self, host: int) -> list[str]:
        """Returns the prefix that runs a command on this host."""
        return ["ip", "netns", "exec", self.names[host]]

    def cut(self) -> None:
        _ip("-n", self.names[0], "link", "set", "eth0", "down")

    def silence(self) -> None:
        """Drops all data while the link stays up: each host gets a false link-layer address for the other."""
        for name, address in zip(self.names, reversed(ADDRESSES), strict=True):
            _ip("-n", name, "neigh", "replace", address, "lladdr", _ABSENT_NEIGHBOUR, "dev", "eth0", "nud", "permanent")

    def mend(self) -> None:
        """Undoes cut() and silence()."""
        for name in self.names:
            _ip("-n", name, "neigh", "flush", "nud", "permanent", "dev", "eth0")
        _ip("-n", self.names[0], "link", "set", "eth0", "up")
        for name in self.names:
            _await_link(name)

    def add_link(self, device: str, addresses: Sequence[str]) -> None:
        """Joins two hosts by one more pair of devices; each address is of a subnet with 24 bits."""
        ends = ["netns", self.names[0], "type", "veth", "peer", "name", device, "netns", self.names[1]]
        _ip("link", "add", device, *ends)
        for name, address in zip(self.names, addresses, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", device)
            _ip("-n", name, "link", "set", device, "up")
        for name in self.names:
            _await_link(name, device)

    def control_congestion(self, algorithm: str) -> None:
        """Sets the algorithm of later connections. bbr, a default of some kernels, paces by its estimate of the link's
        speed.
        """
        for host in range(len(self.names)):
            _run(*self.prefix(host), "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={algorithm}")

    def limit(self, rate: str, device: str = "eth0") -> None:
        """Limits the rate at which each host sends over the device, in tc's notation: 1gbit."""
        for name in self.names:
            bucket = ["rate", rate, "burst", "128kb", "latency", "100ms"]
            _run("tc", "-n", name, "qdisc", "replace", "dev", device, "root", "handle", "1:", "tbf", *bucket)

    def delay(self, time: str) -> None:
        """Delays what each host sends, in tc's notation: 10ms. Follows limit(), if both are wanted."""
        for name in self.names:
            is_limited = "tbf" in _run("tc", "-n", name, "qdisc", "show", "dev", "eth0")
            place = ["parent", "1:1"] if is_limited else ["root"]
            try:
                _run("tc", "-n", name, "qdisc", "add", "dev", "eth0", *place, "netem", "delay", time, "limit", "100000")
            except subprocess.CalledProcessError as error:
                raise UnavailableError(f"this kernel delays no packets (netem): {error.stderr.strip()}") from None

    def lift_limit(self, device: str) -> None:
        """Undoes limit(), which must have been called for the device."""
        for name in self.names:
            _run("tc", "-n", name, "qdisc", "delete", "dev", device, "root")

    def reset(self, host: int, connections: str) -> int:
        """Resets this host's TCP connections that match a filter of ss: dst 10.213.78.2. Returns their number."""
        # A connection that ends by itself meanwhile makes ss print an error.
        found = subprocess.run(
            [*self.prefix(host), "ss", "-tHK", connections], capture_output=True, text=True, check=False
        )
        return len(found.stdout.splitlines())


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    with _namespaces((0, 1)) as names:
        _ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", names[1], "link", "set", "eth0", "up")
        hosts = Hosts(names)
        hosts.mend()
        yield hosts


@contextmanager
def several_hosts(number: int) -> Iterator[Hosts]:
    """Makes hosts with the addresses address_of(0) and so on. cut(), silence() and mend() are for two hosts only."""
    if not 1 <= number <= MOST_HOSTS:
        raise ValueError(f"number is {number}; allowed: 1 to {MOST_HOSTS}")
    with _namespaces((_SWITCH, *range(number))) as (switch, *names):
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for host, name in enumerate(names):
            port = f"port{host}"
            _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", name, "address", "add", f"{address_of(host)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", name, "link", "set", link, "up")
        for name in names:
            _await_link(name)
        yield Hosts(names)


@contextmanager
def _namespaces(numbers: Sequence[int]) -> Iterator[list[str]]:
    """Makes network namespaces of these numbers, and removes them at the end."""
    if reason := _reason_against():
        raise UnavailableError(reason)
    made: list[str] = []
    try:
        for number in numbers:
            name = _name(number)
            _ip("netns", "add", name)
            made.append(name)
        yield made
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def address_of(host: int) -> str:
    return f"10.213.77.{host + 1}"


def clean_up_when_told_to_end() -> None:
    """Makes SIGTERM unwind this process, once: timeout(1) sends it twice."""

    def leave(number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


def move_to(name: str) -> None:
    """Moves this thread, and processes that it starts later, to that host, as `ip netns exec` moves a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as namespace:
        _check(libc.setns(namespace.fileno(), _CLONE_NEWNET))
    _check(libc.unshare(_CLONE_NEWNS))  # /sys shows the interfaces of the namespace that mounts it
    _check(libc.mount(None, b"/", None, _MS_PRIVATE_ALL, None))
    _check(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _reason_against() -> str:
    if shutil.which("ip") is None:
        return "needs iproute2's `ip`"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces"
    probe = subprocess.run(["ip", "netns", "add", _name(9)], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        return f"this kernel or container makes no network namespaces: {probe.stderr.strip()}"
    _ip("netns", "delete", _name(9))
    return ""


def _name(host: int) -> str:
    return f"axon-{os.getpid()}-{host}"


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _await_link(name: str, device: str = "eth0") -> None:
    """The kernel may report a new link as up a second after it carries data, unless queried. Until then, UCX ignores
    the link.
    """
    deadline = time.monotonic() + 10
    while "state UP" not in _ip("-n", name, "link", "show", device):
        assert time.monotonic() < deadline, "the link between the namespaces does not come up"
