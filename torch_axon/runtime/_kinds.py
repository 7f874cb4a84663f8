"""Determines the kind of a registered function, also through decorators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

# Parameters of `Peer.invoke`, `tell` and `iterate` that hide parameters of the same names in a function.
_CALL_OPTIONS = ("timeout", "memory")


class Kind(NamedTuple):
    """What a call of a function returns. A decorator may hide the wrapped function or change what it returns."""

    is_coroutine: bool  # certainly a coroutine
    is_generator: bool  # certainly a generator, asynchronous or not
    is_async: bool  # certainly something that runs on a loop
    may_iterate: bool  # perhaps a generator
    may_be_async: bool  # perhaps something that runs on a loop


def kind_of(function: Callable[..., Any]) -> Kind:
    """Returns the kind of a function, looking through `functools.partial`, callable objects and `functools.wraps`.

    Raises:
        TypeError: the object is not callable
    """
    if not callable(function):
        raise TypeError(f"register: {function!r} cannot be called; allowed: a function")
    outer, inner = _called(function), _called(_innermost(function))
    is_coroutine = inspect.iscoroutinefunction(outer)
    is_generator = inspect.isgeneratorfunction(outer) or inspect.isasyncgenfunction(outer)
    return Kind(
        is_coroutine,
        is_generator,
        is_async=is_coroutine or inspect.isasyncgenfunction(outer),
        may_iterate=is_generator or inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner),
        may_be_async=any(
            test(each) for test in (inspect.iscoroutinefunction, inspect.isasyncgenfunction) for each in (outer, inner)
        ),
    )


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name under which a function is registered if none is given.

    Raises:
        TypeError: the function has no name
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    if isinstance(name, str):
        return name
    raise TypeError(f"register: {function!r} has no name; give it one by register('name')(…)")


def hidden_parameters(function: Callable[..., Any], is_generator: bool) -> list[str]:
    """Returns the parameters that callers can pass by name only through `Peer.options`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function that is not written in Python
        return []
    options = [*_CALL_OPTIONS, "ahead"] if is_generator else _CALL_OPTIONS
    return [name for name in options if name in parameters]


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that runs when an object is called."""
    while isinstance(function, functools.partial):
        function = function.func
    is_function = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_function else type(function).__call__


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    for _ in range(100):  # bounded, because a chain of wrappers may be a cycle
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            break
    return function
