"""How a function's exception is made anew at its caller, of what `_descriptions` has sent.

No constructor written in Python runs: the object is made by its class's `__new__` and given the attributes that it had.
It is used only if it then reads as it did at the function.
"""

from __future__ import annotations

import builtins
import sys
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, NoReturn

from torch_axon.runtime._descriptions import EXCEPTION, NOT_SENT, SURROGATES, TUPLE, clean, fields_of
from torch_axon.runtime._errors import RemoteError, RemoteTraceback

# What a function raises must not end those who have called it as if it had come to them.
_NOT_OURS = (SystemExit, KeyboardInterrupt, GeneratorExit, StopIteration, StopAsyncIteration, CancelledError)


class NotSent:
    """Stands at the caller for a part of an exception that could not be sent, and reads as that did."""

    def __init__(self, class_name: str, text: str, representation: str) -> None:
        self.class_name = class_name
        self._text = text
        self._representation = representation

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._representation


def raise_remote_failure(class_name: str, described: object) -> NoReturn:
    """Raises what a function has raised elsewhere, as the same class where this process has it loaded.

    described: [message, traceback], and for functions of Python arguments and attributes as well
    """
    if not isinstance(described, list) or len(described) < 2:
        described = [str(described), ""]
    message, text, *details = described
    try:
        details = [_decode(detail) for detail in details]
    except Exception:  # what the peer has sent is not what _descriptions makes
        details = [[], {}]
    exception = _rebuild(class_name, str(message), details)
    if text:
        BaseException.__setattr__(exception, "__cause__", RemoteTraceback(str(text)))  # whatever its class forbids
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
    """details: arguments and attributes, decoded; or nothing."""
    cls = _find(class_name)
    arguments, attributes = details if len(details) == 2 else ([message], {})
    if not isinstance(attributes, dict):  # only a peer that is not this library sends such
        attributes = {}
    for given in (arguments, [message]):
        try:
            if cls is None:
                break
            exception = _make(cls, given, attributes)
            if not details or clean(str(exception)) == message:
                return exception
        except Exception:  # a class that cannot be made so, or that cannot do with what could be sent
            continue
    return _make_known(RemoteError(class_name, message), {"__notes__": attributes.get("__notes__")})


def _make(cls: type[Exception], arguments: list[Any], attributes: dict[str, Any]) -> Exception:
    return _make_known(cls.__new__(cls, *arguments), attributes)


def _make_known(exception: Exception, attributes: dict[str, Any]) -> Exception:
    """Gives it the attributes that it had at its function, without running its class's code."""
    fields = fields_of(type(exception))
    for name, value in attributes.items():
        if name in fields:
            with suppress(AttributeError, TypeError):  # which cannot be written, or not to this
                BaseException.__setattr__(exception, name, value)
        elif not name.startswith("__"):
            vars(exception)[name] = value
    notes = attributes.get("__notes__")
    if isinstance(notes, list) and all(isinstance(note, str) for note in notes):
        vars(exception)["__notes__"] = notes
    getattr(exception, "__notes__", None)  # as whatever prints it does: a class may have a __getattr__ that fails
    return exception


def _find(class_name: str) -> type[Exception] | None:
    """Among the built-in exceptions and those of modules that are imported already: nothing is imported for a peer."""
    if class_name == "BaseExceptionGroup":  # of what _NOT_OURS has made exceptions of
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
