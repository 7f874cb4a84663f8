"""One-sided transfers: a process exposes memory, and its peers read and write it by a handle."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from torch_axon import _native
from torch_axon.runtime._future import _FOREVER_S, Future
from torch_axon.runtime._memory import BY_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch_axon._C import RuntimeRegion, RuntimeRemote, RuntimeTransfer
    from torch_axon.runtime._peer import Peer
    from torch_axon.runtime._runtime import Runtime

LocalMemory = Any  # a tensor on the CPU or CUDA, a NumPy array, or another object with the buffer protocol

_ACCESS = {"r": 1, "w": 2, "rw": 3}
_MOST_PARTS = 2048
_LONGEST_NAME = 255

_numbers = itertools.count(1)  # of regions without a name


class Region:
    """Memory that this process exposes to its peers, as `Runtime.expose` returns it.

    All methods may be called on any thread. A region stays exposed until it or its runtime is closed, even if nothing
    refers to it. It is a context manager that closes it.

    Attributes:
        name: the name of the region in errors
        access: what peers may do: "r", "w" or "rw"
        nbytes: its number of bytes
    """

    def __init__(self, runtime: Runtime, region: RuntimeRegion) -> None:
        self._runtime = runtime
        self._region = region
        self.name: str = region.name
        self.access: str = region.access
        self.nbytes: int = region.nbytes

    def __repr__(self) -> str:
        return f"Region({self.name!r}, nbytes={self.nbytes}, access={self.access!r})"

    def __enter__(self) -> Region:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def handle(
        self, offset: int = 0, nbytes: int | None = None, access: str | None = None, peer: int | None = None
    ) -> bytes:
        """Returns a handle. A runtime that has it, and a connection to this runtime, can use these bytes.

        A handle cannot be forged or extended. It is invalid once the region is closed.

        Args:
            offset: the first byte, counted in the region, from 0
            nbytes: the number of bytes; None: up to the end of the region
            access: "r", "w" or "rw", at most what the region allows; None: all of that
            peer: the `Runtime.incarnation` of the only runtime that may use the handle, from 1 to 2**64 - 1; None: any.
                This guards against mistakes only: a runtime of the same secret can state any incarnation, and the
                handle contains it.

        Returns:
            64 bytes.

        Raises:
            ValueError: the range exceeds the region, `access` exceeds what it allows, or `peer` is out of range
            TypeError: an argument has a wrong type
        """
        if peer is not None and not isinstance(peer, int):
            raise TypeError(f"handle: peer is of type {type(peer).__name__}; allowed: int, see Runtime.incarnation")
        if peer is not None and not 0 < peer < 1 << 64:
            raise ValueError(f"handle: peer is {peer}; allowed: 1 to 2**64 - 1")
        offset = _checked_size("handle: offset", offset)
        length = max(0, self.nbytes - offset) if nbytes is None else _checked_size("handle: nbytes", nbytes)
        flags = _access_of("handle", self.access if access is None else access)
        handle: bytes = self._region.handle(self._runtime._core, offset, length, flags, peer or 0)
        return handle

    def close(self, timeout: float | None = None) -> bool:
        """Denies new requests at once, and waits until no peer can touch the memory any more.

        The memory is kept until then, even if this returns False. A peer of this host that is stopped keeps it until it
        goes on or ends; `holders` names it. Closing again waits again.

        Args:
            timeout: seconds to wait; None: the runtime's timeout

        Returns:
            Whether no peer can touch the memory any more, and no transfer moves it. If not, and `timeout` is not 0,
            there is a RuntimeWarning that names the holders.

        Raises:
            ValueError: `timeout` is negative
        """
        limit = self._runtime.timeout if timeout is None else timeout
        if not limit >= 0:
            raise ValueError(f"close: timeout is {limit}; allowed: 0 or more")
        self._region.revoke(self._runtime._core)
        is_at_rest: bool = self._region.await_rest(self._runtime._core, limit)
        if not is_at_rest and limit > 0:
            warnings.warn(
                f"the region '{self.name}' of {self.nbytes} bytes is still held by: {', '.join(self.holders)}",
                RuntimeWarning,
                stacklevel=2,
            )
        return is_at_rest

    @property
    def holders(self) -> list[str]:
        """The names of the peers that keep the memory.

        These are the peers of this host that may be using it directly, and those to or from which its bytes are moving.
        Each name appears once.
        """
        holders: list[str] = self._region.holders(self._runtime._core)
        return holders


class Remote:
    """Memory of a peer, as `Peer.open` returns it. Slices, in bytes, are further objects for the same memory.

    Attributes:
        nbytes: its number of bytes
        region: the name of the region at the peer
        access: what the handle allows: "r", "w" or "rw"
        device: the kind of memory: "cpu" or "cuda"
    """

    __slots__ = ("_memory", "_offset", "access", "device", "nbytes", "region")

    def __init__(self, memory: RuntimeRemote, offset: int, nbytes: int, names: tuple[str, str]) -> None:
        self._memory = memory
        self._offset = offset
        self.nbytes = nbytes
        self.region, self.access = names
        self.device = "cuda" if memory.is_device else "cpu"

    def __repr__(self) -> str:
        return f"Remote({self.region!r}, nbytes={self.nbytes}, access={self.access!r}, path={self.path!r})"

    def __len__(self) -> int:
        return self.nbytes

    @property
    def path(self) -> str:
        """How the bytes move: "memcpy" within this process; "cma" if this process reads the peer's memory directly.

        "shared memory": this process has mapped the memory, which `Runtime.empty` has made, and copies from and to it.
        CUDA memory that a GPU of this process copies: "cuda" within this process, and "cuda ipc" if it is mapped from
        another one. Otherwise "messages". With "cma", writes move by messages, too: the peer fetches the bytes.
        """
        path: str = self._memory.path
        return path

    def tensor(self, dtype: torch.dtype = torch.uint8, shape: Sequence[int] = (-1,)) -> torch.Tensor:
        """Returns this memory itself as a tensor, if this process has mapped it: `path` is "shared memory".

        What one process writes, the other one reads, without a transfer. They have to agree on the order, for example
        by notifications. `Region.close` does not return True at the owner before the tensor and its views are freed.

        Args:
            dtype: the type of the elements
            shape: the shape; one number may be -1

        Returns:
            A contiguous tensor.

        Raises:
            ValueError: `path` is another one, `access` is not "rw", the memory is not in one part of its region or not
                aligned for `dtype`
            RuntimeError: the memory has another size than `dtype` and `shape`
            AccessDenied: the region is closed
        """
        if self.access != "rw":
            raise ValueError(f"tensor: access is '{self.access}'; allowed: 'rw', since a tensor can be written")
        found: torch.Tensor = self._memory.tensor(self._offset, self.nbytes)
        if found.data_ptr() % dtype.itemsize != 0:
            raise ValueError(f"tensor: the memory is not aligned to {dtype.itemsize} bytes; allowed for {dtype}")
        return found.view(dtype).view(*shape).detach()

    def __getitem__(self, part: slice) -> Remote:
        """Returns a part of the memory, in bytes. Sends no message.

        Raises:
            TypeError: `part` is not a slice
            ValueError: the slice has a step, or exceeds the memory
        """
        if not isinstance(part, slice):
            raise TypeError(f"Remote: index is of type {type(part).__name__}; allowed: slices, in bytes")
        begin = 0 if part.start is None else part.start
        end = self.nbytes if part.stop is None else part.stop
        if part.step not in (None, 1) or not 0 <= begin <= end <= self.nbytes:
            raise ValueError(
                f"Remote: slice [{part.start}:{part.stop}:{part.step}]; "
                f"allowed: within 0 to {self.nbytes}, without a step"
            )
        return Remote(self._memory, self._offset + begin, end - begin, (self.region, self.access))


@dataclass(frozen=True)
class TransferStats:
    """What a finished transfer did.

    Attributes:
        posted_us: microseconds from its call until it began
        moved_us: microseconds from then on until it ended
        nbytes: its bytes
        blocks: its blocks
        path: how the bytes moved, see `Remote.path`
    """

    posted_us: float
    moved_us: float
    nbytes: int
    blocks: int
    path: str


# The tag, the timeout in seconds, the stream, see `stream_of`, and the type, see `type_of`.
Options: TypeAlias = "tuple[bytes | None, float, tuple[int, int, int] | None, int | None]"

# The states of a transfer, as the engine numbers them.
UNDER_WAY, DONE, FAILED = range(3)


class Transfer(Future):
    """A read, write or notification under way, as `Peer.read` returns it. Threads wait for it, and loops await it.

    Its result is None. It raises `AccessDenied`, `PeerLostError`, `TimeoutError`, `CancelledError` or `BufferError`,
    each time it is asked; or `RuntimeClosedError`, if this process has closed its runtime or the peer. Until
    `released`, local memory is kept, and may still be read or written even if the transfer has failed.
    """

    __slots__ = ()
    _call: RuntimeTransfer

    def __init__(self, peer: Peer, transfer: RuntimeTransfer) -> None:
        super().__init__(peer, transfer, BY_DEFAULT)

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end of the transfer, see `Future.wait`. `result` is the same method."""
        if self._call.succeeds(_FOREVER_S if timeout is None else timeout):
            return
        if not self._call.finished:
            raise self._late(timeout)
        self._outcome()  # raises, unless it has succeeded since

    result = wait

    def done(self) -> bool:
        """Returns whether the transfer has ended. A program that asks again and again drives the engine by that."""
        return self._call.poll() != UNDER_WAY

    @property
    def released(self) -> bool:
        """Whether nothing moves to or from the local memory any more."""
        released: bool = self._call.released
        return released

    def cancel(self) -> bool:
        """Cancels the transfer, unless it has ended, and waits for its end. Bytes may still move until `released`.

        Returns:
            Whether the transfer ended with CancelledError by this.
        """
        return super().cancel()

    def stats(self) -> TransferStats:
        """Returns what the transfer did.

        Raises:
            RuntimeError: the transfer is not done
        """
        if not self.done():
            raise RuntimeError("stats: the transfer is not done; allowed: after result()")
        return TransferStats(*self._call.stats())


def _checked_size(what: str, value: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{what} is of type {type(value).__name__}; allowed: int")
    if not 0 <= value < 1 << 63:
        raise ValueError(f"{what} is {value}; allowed: 0 or more")
    return value


def _access_of(what: str, access: str) -> int:
    if access not in _ACCESS:
        raise ValueError(f"{what}: access is {access!r}; allowed: 'r', 'w' and 'rw'")
    return _ACCESS[access]


def _name_of(name: str | None) -> str:
    if name is None:
        return f"region {next(_numbers)}"
    if len(name.encode()) > _LONGEST_NAME:
        raise ValueError(f"expose: name has {len(name.encode())} bytes; allowed: up to {_LONGEST_NAME}")
    return name


def empty(
    size: tuple[int | Sequence[int], ...], dtype: torch.dtype | None, device: str | torch.device | None
) -> torch.Tensor:
    """Allocates a tensor for `Runtime.empty`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `Runtime.empty`
    """
    place = _place_of("empty", "cpu" if device is None else device)
    like = torch.empty(*size, dtype=dtype, device="meta")  # type: ignore[arg-type]  # torch checks the shape
    if place.type == "cuda" or like.nbytes == 0:
        return torch.empty_like(like, device=place)
    memory: torch.Tensor = _native.load().mappable_tensor(like.nbytes)
    return memory.view(like.dtype).view(like.shape).detach()  # views that no_grad has made refuse gradients


def expose(runtime: Runtime, memory: LocalMemory | Sequence[LocalMemory], access: str, name: str | None) -> Region:
    """Exposes memory for `Runtime.expose`.

    Raises:
        TypeError, ValueError: as for `Runtime.expose`
    """
    flags = _access_of("expose", access)
    parts = list(memory) if isinstance(memory, list | tuple) else [memory]
    if not 1 <= len(parts) <= _MOST_PARTS:
        raise ValueError(f"expose: memory has {len(parts)} parts; allowed: 1 to {_MOST_PARTS} in one region")
    return Region(runtime, _native.load().expose(runtime._core, parts, flags, _name_of(name)))


def expose_pointer(
    runtime: Runtime,
    memory: tuple[int, int],
    device: str | torch.device,
    access: str,
    name: str | None,
    keepalive: object,
) -> Region:
    """Exposes memory at an address for `Runtime.expose_pointer`.

    Raises:
        TypeError, ValueError: as for `Runtime.expose_pointer`
    """
    address = _checked_size("expose_pointer: ptr", memory[0])
    nbytes = _checked_size("expose_pointer: nbytes", memory[1])
    if address == 0 and nbytes != 0:
        raise ValueError("expose_pointer: ptr is 0; allowed: the address of memory")
    flags = _access_of("expose_pointer", access)
    native = _native.load()
    region = native.expose_pointer(runtime._core, (address, nbytes), _gpu_of(device), flags, _name_of(name), keepalive)
    return Region(runtime, region)


def _place_of(what: str, device: str | torch.device) -> torch.device:
    place = torch.device(device)
    if place.type not in ("cpu", "cuda"):
        raise ValueError(f"{what}: device is {str(device)!r}; allowed: 'cpu', and 'cuda' with its number")
    return place


def _gpu_of(device: str | torch.device) -> int:
    """Returns the number of a GPU, or -1 for the CPU."""
    place = _place_of("expose_pointer", device)
    if place.type == "cpu":
        return -1
    return torch.cuda.current_device() if place.index is None else place.index


# How slow links compress, as the engine numbers types; None: by the type of the local memory.
_AUTO = "auto"
_COMPRESSIONS: dict[object, int | None] = {_AUTO: None, "never": 0, torch.bfloat16: 11, torch.float32: 12}


def type_of(compress: str | torch.dtype) -> int | None:
    """Returns the type by which slow links may compress blocks, as the engine numbers it, see `Peer.read`.

    Raises:
        TypeError, ValueError: `compress` has another value
    """
    try:
        return _COMPRESSIONS[compress]
    except (KeyError, TypeError):
        if not isinstance(compress, str | torch.dtype):
            raise TypeError(f"compress is of type {type(compress).__name__}; allowed: str and torch.dtype") from None
        raise ValueError(
            f"compress is {compress!r}; allowed: 'auto', 'never', torch.bfloat16 and torch.float32"
        ) from None


def stream_of(stream: torch.cuda.Stream | None) -> tuple[int, int, int] | None:
    """Returns what names a stream to the engine.

    Raises:
        TypeError: it is not a stream of torch
    """
    if stream is None:
        return None
    if not isinstance(stream, torch.Stream):
        raise TypeError(f"stream is of type {type(stream).__name__}; allowed: torch.cuda.Stream")
    return stream.stream_id, stream.device_index, stream.device_type


def tag_of(tag: bytes | None) -> bytes | None:
    """Checks the tag of a notification.

    Raises:
        TypeError: it is not bytes
    """
    if tag is None or isinstance(tag, bytes):
        return tag
    raise TypeError(f"notify: tag is of type {type(tag).__name__}; allowed: bytes")


def remote_of(opening: Transfer, gpu: int) -> Remote:
    """Returns the memory that a finished opening has opened, mapped for this GPU if it is memory of one."""
    memory = opening._call.opened
    memory.map(gpu)
    return Remote(memory, 0, memory.nbytes, (memory.region, memory.access))


def options_of(
    notify: bytes | None, limit: float, stream: torch.cuda.Stream | None, compress: str | torch.dtype
) -> Options:
    """Returns the options of a transfer that takes at most `limit` seconds.

    Raises:
        TypeError, ValueError: as for `Peer.read`
    """
    if notify is None and stream is None and compress is _AUTO:  # most transfers
        return None, limit, None, None
    return tag_of(notify), limit, stream_of(stream), type_of(compress)


def post_block(
    peer: Peer,
    verb: str,
    start: Callable[..., RuntimeTransfer],
    remote: Remote,
    local: LocalMemory,
    options: Options,
) -> Transfer:
    """Starts the transfer of one block by the native function `start`, see `post`."""
    try:
        memory, offset, nbytes = remote._memory, remote._offset, remote.nbytes
    except AttributeError:
        raise _not_remote(verb, remote) from None
    return Transfer(peer, start(peer._connection, memory, offset, nbytes, local, options))


def _not_remote(verb: str, remote: object) -> TypeError:
    return TypeError(f"{verb}: remote is of type {type(remote).__name__}; allowed: Remote, see Peer.open")


def post(
    peer: Peer,
    verb: str,
    remotes: Sequence[Remote],
    local: Sequence[LocalMemory],
    options: Options,
) -> Transfer:
    """Starts the transfer of some blocks.

    Args:
        peer: the owner of the remote memory
        verb: "read" or "write"
        remotes: the blocks there
        local: the blocks here
        options: see `options_of`

    Raises:
        TypeError, ValueError: as for `Peer.read` and `Peer.readv`
    """
    if len(remotes) != len(local):
        raise ValueError(f"{verb}: {len(remotes)} remote and {len(local)} local blocks; allowed: as many of both")
    try:
        blocks = [(remote._memory, remote._offset, remote.nbytes) for remote in remotes]
    except AttributeError:
        raise _not_remote(verb, next(each for each in remotes if not isinstance(each, Remote))) from None
    native = _native.load()
    start = native.post_read if verb == "read" else native.post_write
    return Transfer(peer, start(peer._connection, blocks, list(local), options))
