"""Exceptions that calls raise."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import NoReturn


class PeerLostError(ConnectionError):
    """The peer's process has ended, its host cannot be reached, or it has closed its runtime or this connection."""


class RuntimeClosedError(ConnectionError):
    """This process has closed its runtime, or its connection to this peer."""


class AccessDenied(PermissionError):  # noqa: N818
    """The peer does not let this process use its memory so: the region is closed, or was not exposed for this access,
    these bytes or this peer."""


class UnknownHostError(ConnectionError):
    """The name of a host cannot be resolved to an address."""


class WrongSecretError(ConnectionError):
    """The peer has another secret than this runtime, or the address belongs to a listener that is closed."""


class VersionMismatchError(ConnectionError):
    """The peer runs a version of torch_axon with another wire format."""


class RemoteError(RuntimeError):
    """A function of a peer failed with an exception whose class this process has not imported or cannot construct.

    Args:
        class_name: the name of that class, with its module
        message: the text of the exception

    Attributes:
        class_name: the name of that class, with its module
        message: the text of the exception
    """

    def __init__(self, class_name: str, message: str) -> None:
        super().__init__(f"{class_name}: {message}")
        self.class_name = class_name
        self.message = message

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str]]:
        return type(self), (self.class_name, self.message)  # so that callers can pickle it


class RemoteTraceback(Exception):  # noqa: N818
    """The cause of an exception that a peer's function raised; its text is the traceback there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


_CLASSES: dict[str, type[Exception]] = {
    "invalid_argument": ValueError,
    "timeout": TimeoutError,
    "peer_lost": PeerLostError,
    "aborted": RuntimeClosedError,
    "resource_exhausted": BufferError,
    "cancelled": CancelledError,
    "unknown_host": UnknownHostError,
    "wrong_secret": WrongSecretError,
    "access_denied": AccessDenied,
    "mismatch": VersionMismatchError,
}


def failure_of(code: str, message: str) -> Exception:
    """Returns the Python exception for a failure of the engine; its class depends on `code`."""
    return _CLASSES.get(code, ConnectionError)(message)


def raise_failure(code: str, message: str) -> NoReturn:
    """Raises the Python exception for a failure of the engine.

    Raises:
        Exception: always; the class depends on `code`
    """
    raise failure_of(code, message)
