"""What goes wrong with calls."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import NoReturn


class PeerLostError(ConnectionError):
    """The peer's process has ended, its host cannot be reached, or it has closed its runtime or this connection."""


class RuntimeClosedError(ConnectionError):
    """This process's own end is closed: its runtime, or what it had of this peer."""


class UnknownHostError(ConnectionError):
    """No address is known for the host that was to be connected to."""


class WrongSecretError(ConnectionError):
    """The peer does not know the secret that this runtime has, or the address is of a listener that is gone."""


class VersionMismatchError(ConnectionError):
    """The peer runs a version of torch_axon that this one does not understand."""


class RemoteError(RuntimeError):
    """A function has failed with an exception of a class that this process does not have, or cannot make anew.

    class_name: that class's name, with its module
    message: what the exception has said
    """

    def __init__(self, class_name: str, message: str) -> None:
        super().__init__(f"{class_name}: {message}")
        self.class_name = class_name
        self.message = message

    def __reduce__(self) -> tuple[type[RemoteError], tuple[str, str]]:
        return type(self), (self.class_name, self.message)  # for callers that hand it on by pickle


class RemoteTraceback(Exception):  # noqa: N818
    """The cause of an exception that a function has raised: where that was."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


_CLASSES: dict[str, type[BaseException]] = {
    "invalid_argument": ValueError,
    "timeout": TimeoutError,
    "peer_lost": PeerLostError,
    "aborted": RuntimeClosedError,
    "resource_exhausted": BufferError,
    "cancelled": CancelledError,
    "unknown_host": UnknownHostError,
    "wrong_secret": WrongSecretError,
    "mismatch": VersionMismatchError,
}


def raise_failure(code: str, message: str) -> NoReturn:
    """Raises what a failure of the engine's is for Python."""
    raise _CLASSES.get(code, ConnectionError)(message)
