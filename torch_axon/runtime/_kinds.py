"""What kind of function is registered, whatever decorates it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

# Parameters of `Peer.invoke`, `tell` and `iterate` that hide a function's own of the same names.
_CALL_OPTIONS = ("timeout", "memory")


class Kind(NamedTuple):
    """What calling a function makes. A decorator may hide what it decorates, and may do with that what it likes."""

    is_coroutine: bool  # a coroutine, for sure
    is_generator: bool  # a generator, asynchronous or not, for sure
    is_async: bool  # one of these that runs on a loop, for sure
    may_iterate: bool  # perhaps a generator
    may_be_async: bool  # perhaps something that runs on a loop


def kind_of(function: Callable[..., Any]) -> Kind:
    """Looks through `functools.partial`, objects that are called, and what `functools.wraps` leaves.

    Raises:
        TypeError: it cannot be called
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
    """What a function is registered as where no name is given.

    Raises:
        TypeError: it has no name of its own
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    if isinstance(name, str):
        return name
    raise TypeError(f"register: {function!r} has no name; allowed: to give it one, register('name')(…)")


def hidden_parameters(function: Callable[..., Any], is_generator: bool) -> list[str]:
    """Its parameters that callers cannot pass by name but through `Peer.options`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of functions that are not Python's
        return []
    options = [*_CALL_OPTIONS, "ahead"] if is_generator else _CALL_OPTIONS
    return [name for name in options if name in parameters]


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs when it is called."""
    while isinstance(function, functools.partial):
        function = function.func
    is_function = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_function else type(function).__call__


def _innermost(function: Callable[..., Any]) -> Callable[..., Any]:
    for _ in range(100):  # a chain may lead back to itself
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            break
    return function
