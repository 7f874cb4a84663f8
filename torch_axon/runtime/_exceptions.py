"""Reconstructs a function's exception at its caller from the description that `_descriptions` sent.

No constructor written in Python runs: the class's `__new__` makes the object, which is then given its attributes. The
object is used only if its text is then the same as at the function.
"""

from __future__ import annotations

import builtins
import sys
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, NoReturn

from torch_axon.runtime._descriptions import EXCEPTION, NOT_SENT, SURROGATES, TUPLE, clean, fields_of
from torch_axon.runtime._errors import RemoteError, RemoteTraceback

# A remote exception of these classes must not end its caller as if the caller itself had been interrupted.
_NOT_OURS = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, CancelledError)


class NotSent:
    """Replaces a value of an exception that could not be sent. It has the value's `str` and `repr`."""

    def __init__(self, class_name: str, text: str, representation: str) -> None:
        self.class_name = class_name
        self._text = text
        self._representation = representation

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._representation


def raise_remote_failure(class_name: str, described: object) -> NoReturn:
    """Raises what a peer's function raised, as the same class if this process has imported it.

    Args:
        class_name: the name of the class, with its module
        described: [message, traceback]; from functions in Python, arguments and attributes follow

    Raises:
        Exception: always: the reconstructed exception, or a RemoteError
    """
    if not isinstance(described, list) or len(described) < 2:
        described = [str(described), ""]
    message, text, *details = described
    try:
        details = [_decode(detail) for detail in details]
    except Exception:  # the peer sent something that _descriptions does not produce
        details = [[], {}]
    exception = _rebuild(class_name, str(message), details)
    if text:
        BaseException.__setattr__(exception, "__cause__", RemoteTraceback(str(text)))  # even if its class forbids it
    raise exception


def _decode(value: object) -> object:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    decoded: dict[str, Any] = {key: _decode(item) for key, item in value.items()}
    if TUPLE in decoded:
        return tuple(decoded[TUPLE])
    if SURROGATES in decoded:
        return decoded[SURROGATES].decode("utf-8", "surrogatepass")
    if NOT_SENT in decoded:
        return NotSent(*decoded[NOT_SENT])
    if EXCEPTION in decoded:
        class_name, message, *details = decoded[EXCEPTION]
        return _rebuild(class_name, message, details)
    return decoded


def _rebuild(class_name: str, message: str, details: list[Any]) -> Exception:
    """Reconstructs an exception. `details` is empty, or holds the decoded arguments and attributes."""
    cls = _find(class_name)
    arguments, attributes = details if len(details) == 2 else ([message], {})
    if not isinstance(attributes, dict):  # only a peer that is not this library sends this
        attributes = {}
    for given in (arguments, [message]):
        try:
            if cls is None:
                break
            exception = _make(cls, given, attributes)
            if not details or clean(str(exception)) == message:
                return exception
        except Exception:  # the class cannot be made this way, or not from the values that could be sent
            continue
    return _make_known(RemoteError(class_name, message), {"__notes__": attributes.get("__notes__")})


def _make(cls: type[Exception], arguments: list[Any], attributes: dict[str, Any]) -> Exception:
    return _make_known(cls.__new__(cls, *arguments), attributes)


def _make_known(exception: Exception, attributes: dict[str, Any]) -> Exception:
    """Gives an exception the attributes that it had at the function, without running code of its class."""
    fields = fields_of(type(exception))
    for name, value in attributes.items():
        if name in fields:
            with suppress(AttributeError, TypeError):  # a field that is read-only or refuses this value
                BaseException.__setattr__(exception, name, value)
        elif not name.startswith("__"):
            vars(exception)[name] = value
    notes = attributes.get("__notes__")
    if isinstance(notes, list) and all(isinstance(note, str) for note in notes):
        vars(exception)["__notes__"] = notes
    getattr(exception, "__notes__", None)  # fails here, not in printing, if the class has a bad __getattr__
    return exception


def _find(class_name: str) -> type[Exception] | None:
    """Finds a class among the built-in exceptions and in imported modules. Nothing is imported for a peer."""
    if class_name == "BaseExceptionGroup":  # since members of _NOT_OURS were replaced by exceptions
        class_name = "ExceptionGroup"
    found: object = vars(builtins).get(class_name)
    names = class_name.split(".")
    for i in range(len(names) - 1, 0, -1):
        module = sys.modules.get(".".join(names[:i]))
        if module is None:
            continue
        found = module
        for name in names[i:]:
            found = vars(found).get(name) if hasattr(found, "__dict__") else None
        break
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, _NOT_OURS):
        return found
    return None
