"""What goes wrong with calls, and how a function's exception travels."""

from __future__ import annotations

import builtins
import sys
import traceback
from concurrent.futures import CancelledError
from typing import NoReturn


class PeerLostError(ConnectionError):
    """The peer's process has ended, its host cannot be reached, or it has closed its runtime or this connection."""


class RuntimeClosedError(ConnectionError):
    """This process's own end is closed: its runtime, or what it had of this peer."""


class RemoteError(RuntimeError):
    """A function has failed with an exception of a class that this process does not have; `class_name` names it."""

    def __init__(self, class_name: str, message: str) -> None:
        super().__init__(f"{class_name}: {message}")
        self.class_name = class_name


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
}


def raise_failure(code: str, message: str) -> NoReturn:
    """Raises what a failure of the engine's is for Python."""
    raise _CLASSES.get(code, ConnectionError)(message)


def describe(exception: BaseException) -> tuple[str, str, str, list[object]]:
    """Of a function's exception: the name of its class, its message, its traceback, its arguments."""
    cls = type(exception)
    name = cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    text = "".join(traceback.format_exception(cls, exception, exception.__traceback__))
    return name, str(exception), text, list(exception.args)


def raise_remote_failure(class_name: str, described: object) -> NoReturn:
    """Raises what a function has raised elsewhere, as the same class where this process has it loaded."""
    message, text, *arguments = described if isinstance(described, list) else [str(described), ""]
    exception = _rebuild(class_name, str(message), arguments[0] if arguments else [str(message)])
    if text:
        exception.__cause__ = RemoteTraceback(str(text))
    raise exception


# What a function raises must not end those who have called it as if it had come to them.
_NOT_OURS = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration)


def _rebuild(class_name: str, message: str, arguments: object) -> BaseException:
    cls = _find(class_name)
    if cls is None or not isinstance(arguments, list):
        return RemoteError(class_name, message)
    try:
        return cls(*arguments)
    except Exception:
        return RemoteError(class_name, message)


def _find(class_name: str) -> type[Exception] | None:
    """Among the built-in exceptions and those of modules that are imported already: nothing is imported for a peer."""
    module_name, _, name = class_name.rpartition(".")
    found = getattr(builtins, name, None) if not module_name else getattr(sys.modules.get(module_name), name, None)
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, _NOT_OURS):
        return found
    return None
