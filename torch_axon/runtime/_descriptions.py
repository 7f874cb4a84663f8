"""Describes a function's exception for sending: class name, text and traceback, and all else as plain values.

`_exceptions` reconstructs the exception from this. Nothing is pickled.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from types import MemberDescriptorType
from typing import Any, TypeVar

import torch

T = TypeVar("T")

# Bounds on what is sent for one exception, which may refer to arbitrary objects.
_MOST_TEXT = 1 << 20  # characters of a message or a traceback, bytes of a tensor
_MOST_REPR = 4096  # characters of the text that replaces a value which cannot be sent
_MOST_SENT = 4 << 20  # characters and bytes of all arguments and attributes, and the same number of values
_DEEPEST = 8
_MOST_NAME_BYTES = 255  # for the name of a class; the bound of function names

# Fields of built-in exceptions that are not sent: the object that lacked an attribute, and copies of the arguments.
_LEFT_OUT = ("obj", "exceptions")
# Keys of dicts that encode types which plain values lack.
TUPLE, EXCEPTION, NOT_SENT, SURROGATES = "axon.tuple", "axon.exception", "axon.not_sent", "axon.surrogates"


def describe(exception: BaseException) -> tuple[str, str, str, list[object], dict[str, object]]:
    """Returns an exception's class name, message, traceback, arguments and attributes, all as plain values.

    The extension calls this for every exception of a function. It raises nothing, whatever the exception's own code
    does.
    """
    exception = _as_raised(exception)
    arguments, attributes = _Encoder().details(exception, 0)
    return _name_of(type(exception)), _message(exception), _traceback(exception), arguments, attributes


def clean(text: str) -> str:
    """Returns text that can be sent: of bounded length and without surrogates, which file names may contain."""
    return _shortened(str.__str__(text)).encode("utf-8", "backslashreplace").decode()


def fields_of(cls: type[BaseException]) -> list[str]:
    """Returns the attributes outside `__dict__`: those of built-in classes, such as `OSError.filename`, and slots."""
    return [
        name
        for each in cls.__mro__
        for name, member in vars(each).items()
        if isinstance(member, MemberDescriptorType)
        and not name.startswith("__")
        and not (name in _LEFT_OUT and each.__module__ == "builtins")
    ]


def _name_of(cls: type[BaseException]) -> str:
    name = cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return clean(name).encode()[:_MOST_NAME_BYTES].decode("utf-8", "ignore")


def _as_raised(exception: BaseException) -> BaseException:
    """Returns the StopIteration for which the interpreter substituted a RuntimeError, or else the exception itself.

    The interpreter does so when a StopIteration leaves a coroutine or a generator.
    """
    cause = exception.__cause__
    if type(exception) is RuntimeError and isinstance(cause, StopIteration | StopAsyncIteration):
        texts = [f"{kind} raised {type(cause).__name__}" for kind in ("coroutine", "generator", "async generator")]
        if str(exception) in texts:
            return cause
    return exception


def _or_else(make: Callable[[], T], otherwise: T) -> T:
    """Calls code of users' classes and returns `otherwise` if it raises."""
    try:
        return make()
    except Exception:
        return otherwise


def _shortened(text: str) -> str:
    """Returns at most _MOST_TEXT characters of a text. Shortening the result again does not change it."""
    if len(text) <= _MOST_TEXT:
        return text
    half = (_MOST_TEXT - 100) // 2
    return f"{text[:half]}\n… ({len(text)} characters) …\n{text[-half:]}"


def _message(exception: BaseException) -> str:
    try:
        return clean(str(exception))
    except Exception as error:
        return f"no text: __str__ raised {type(error).__name__}"


def _traceback(exception: BaseException) -> str:
    try:
        lines = traceback.format_exception(type(exception), exception, exception.__traceback__)
    except Exception as error:
        lines = [*traceback.format_tb(exception.__traceback__), f"(no further text: {type(error).__name__})"]
    return clean("".join(lines))


def _attributes(exception: BaseException) -> dict[str, object]:
    unset = object()
    attributes = {name: _or_else(partial(getattr, exception, name), unset) for name in fields_of(type(exception))}
    attributes = {name: value for name, value in attributes.items() if value is not unset and value is not None}
    nothing: dict[str, Any] = {}
    attributes |= _or_else(lambda: dict(vars(exception)), nothing)
    return attributes


class _Encoder:
    """Converts an exception's arguments and attributes to plain values, within the bounds on their size."""

    def __init__(self) -> None:
        self._room = _MOST_SENT

    def details(self, exception: BaseException, depth: int) -> tuple[list[object], dict[str, object]]:
        nothing: list[object] = []
        arguments = _or_else(lambda: list(exception.args), nothing)
        return (
            [self._encode(argument, depth) for argument in arguments if self._room > 0],
            {
                clean(name): self._encode(value, depth)
                for name, value in _attributes(exception).items()
                if self._room > 0
            },
        )

    def _encode(self, value: object, depth: int) -> object:
        """Returns what `_exceptions` decodes to the same value, or else to an object with the same text."""
        try:
            encoded, size = self._plain(value) if depth > _DEEPEST else self._plain_or_nested(value, depth + 1)
        except Exception:  # raised by the value's own code, or because it has no plain form
            encoded, size = _not_sent(value)
        self._room -= 1 + size
        return encoded

    def _plain_or_nested(self, value: object, depth: int) -> tuple[object, int]:
        if isinstance(value, BaseException):
            return {EXCEPTION: [_name_of(type(value)), _message(value), *self.details(value, depth)]}, 0
        if type(value) in (list, tuple) and len(value) < self._room:  # type: ignore[arg-type]
            items = [self._encode(item, depth) for item in value]  # type: ignore[attr-defined]
            return (items if type(value) is list else {TUPLE: items}), 0
        if type(value) is dict and len(value) < self._room and all(type(key) is str for key in value):
            return {clean(key): self._encode(item, depth) for key, item in value.items()}, 0
        return self._plain(value)

    def _plain(self, value: object) -> tuple[object, int]:
        if value is None or type(value) in (bool, float):
            return value, 0
        if isinstance(value, str) and repr(value) == str.__repr__(value):
            text = _shortened(str.__str__(value))
            is_clean = text.isascii() or text == clean(text)
            return self._fitting(text if is_clean else {SURROGATES: text.encode("utf-8", "surrogatepass")}, len(text))
        if isinstance(value, int) and -(1 << 63) <= value < 1 << 64 and repr(value) == int.__repr__(value):
            return int(value), 0
        if type(value) is bytes:
            return self._fitting(value, len(value))
        if (
            type(value) is torch.Tensor
            and value.layout is torch.strided
            and value.is_cpu
            and value.nbytes <= _MOST_TEXT
        ):
            return self._fitting(value, value.nbytes)
        raise TypeError("the value has no plain form")

    def _fitting(self, encoded: object, size: int) -> tuple[object, int]:
        if size > self._room:
            raise ValueError("the value exceeds the bounds")
        return encoded, size


def _not_sent(value: object) -> tuple[object, int]:
    unknown = object.__repr__(value)
    text, representation = _or_else(lambda: str(value), unknown), _or_else(lambda: repr(value), unknown)
    return {
        NOT_SENT: [clean(type(value).__qualname__), clean(text[:_MOST_REPR]), clean(representation[:_MOST_REPR])]
    }, min(len(text), _MOST_REPR)
