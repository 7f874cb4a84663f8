"""Plain values: they return as documented, or their sender refuses them with a reason before the function runs."""

from __future__ import annotations

import collections
import enum
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from torch_axon.runtime import Peer, Runtime


class Number(enum.IntEnum):
    TWO = 2


class Color(str, enum.Enum):
    RED = "red"


class Suit(enum.Enum):
    SPADES = 1


@dataclass
class Config:
    size: int = 3


class Name(str):
    __slots__ = ()


Point = collections.namedtuple("Point", "x y")


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def _same(left: object, right: object) -> bool:
    """Returns whether two values are equal and of equal types at every level."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return _same(list(left), list(right)) and _same(list(left.values()), list(right.values()))
    return left == right


_ARRIVES_AS: dict[str, tuple[Any, Any]] = {
    "borders": ([2**64 - 1, -(2**63), -0.0, math.inf, "\0"], [2**64 - 1, -(2**63), -0.0, math.inf, "\0"]),
    "keys": ({b"k": 1, True: 2, None: 3, 2.5: 4, -7: 5, "": 6}, {b"k": 1, True: 2, None: 3, 2.5: 4, -7: 5, "": 6}),
    "tuple": ((1, (2, 3)), [1, [2, 3]]),
    "named tuple": (Point(1, 2), [1, 2]),
    "size": (torch.ones(2, 3).shape, [2, 3]),
    "IntEnum": ({Number.TWO: Number.TWO}, {2: 2}),
    "str enum": ({Color.RED: Color.RED}, {"red": "red"}),
    "str subclass": ({Name("a"): Name("b")}, {"a": "b"}),
    "defaultdict": (collections.defaultdict(int, a=1), {"a": 1}),
    "OrderedDict": (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    "NumPy scalars": (
        [np.int64(-3), np.uint64(2**64 - 1), np.float16(0.5), np.float32(2.5), np.float64(2.5), np.bool_(True)],
        [-3, 2**64 - 1, 0.5, 2.5, 2.5, True],
    ),
    "NumPy text": ([np.str_("a"), np.bytes_(b"b")], ["a", b"b"]),
}


@pytest.mark.parametrize("name", _ARRIVES_AS)
def test_plain_values_arrive_as_documented(peer: Peer, name: str) -> None:
    value, expected = _ARRIVES_AS[name]
    assert _same(peer.invoke("echo", value).result(), expected)
    assert _same(peer.invoke("echo", value=value).result(), {"value": expected})


def test_values_are_nested_up_to_64_levels_deep(runtime: Runtime) -> None:
    with Runtime("levels") as server:
        server.register("same")(lambda value: value)
        peer = runtime.connect(server.address)
        assert _same(peer.invoke("same", _nested(64)).result(), _nested(64))
        assert _same(peer.invoke("same", value=_nested(64)).result(), _nested(64))
        peer.close()


def _cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append({"again": cycle})
    return cycle


_REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "int above 64 bits": (2**64, OverflowError, r"argument 1: an int .* 64 bits; allowed: -2\*\*63 to 2\*\*64 - 1"),
    "int below 64 bits": (-(2**63) - 1, OverflowError, "argument 1: an int .* 64 bits"),
    "where it is": ({"a": [0, {7: {1, 2}}]}, TypeError, r"argument 1\['a'\]\[1\]\[7\]: a value of type set"),
    "after a long key": ({"ü" * 100: {1}}, TypeError, r"argument 1\['ü{59}\.\.\.\]: a value of type set"),
    "set": (frozenset({1}), TypeError, "type frozenset"),
    "dataclass": (Config(), TypeError, "type Config"),
    "plain enum": (Suit.SPADES, TypeError, "type Suit"),
    "class": (Config, TypeError, "type type"),
    "complex": (1j, TypeError, "type complex"),
    "NumPy complex": (np.complex64(1), TypeError, "type complex64"),
    "NumPy date": (np.datetime64("2024-01-01"), TypeError, "type datetime64"),
    "NumPy duration": (np.timedelta64(3, "ns"), TypeError, "type timedelta64"),
    "NumPy long double": (np.longdouble(1), TypeError, "type (longdouble|float128)"),
    "NumPy record": (np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0], TypeError, "type void"),
    "range": (range(3), TypeError, "type range"),
    "deque": (collections.deque([1]), TypeError, "type deque"),
    "exception": (ValueError("x"), TypeError, "type ValueError"),
    "dtype": (torch.float32, TypeError, "type dtype"),
    "storage": (torch.ones(3).untyped_storage(), TypeError, "type UntypedStorage"),
    "surrogate": ("a\udcff", ValueError, "argument 1: a str .*surrogates"),
    "surrogate as a key": ({"a\udcff": 1}, ValueError, "argument 1: a str .*surrogates"),
    "too deep": (_nested(65), ValueError, "argument 1: .*64 levels"),
    "cycle": (_cycle(), ValueError, "argument 1: .*64 levels"),
    "tuple as a key": ({("layer", 1): 2}, TypeError, r"argument 1: a dict key of type tuple .*\('layer', 1\)"),
    "tensor as a key": ({torch.ones(1): 2}, TypeError, "argument 1: a dict key of type Tensor"),
    "enum as a key": ({Suit.SPADES: 2}, TypeError, "argument 1: a dict key of type Suit"),
    "nan as a key": ({math.nan: 2}, ValueError, "argument 1: a dict key that is nan"),
    "large int as a key": ({2**64: 2}, OverflowError, "argument 1: an int .* 64 bits"),
}
_NUMPY_KEYS = (np.int64(3), np.float64(3), np.float32(3), np.str_("a"), np.bytes_(b"a"), np.bool_(True))
_REFUSED |= {
    f"{type(key).__name__} as a key": ({key: 2}, TypeError, f"argument 1: a dict key of type {type(key).__name__}")
    for key in _NUMPY_KEYS
}


@pytest.mark.parametrize("name", _REFUSED)
def test_what_cannot_be_sent_is_refused_at_its_sender(peer: Peer, name: str) -> None:
    value, error, pattern = _REFUSED[name]
    with pytest.raises(error, match=pattern):
        peer.invoke("echo", value)
    with pytest.raises(error, match=pattern.replace("argument 1", "argument 'named'")):
        peer.invoke("echo", named=value)
    assert peer.invoke("echo", 1).result() == 1


@pytest.mark.parametrize("name", _REFUSED)
def test_answers_that_cannot_be_sent_are_named_to_the_caller(runtime: Runtime, answering: Peer, name: str) -> None:
    _, error, pattern = _REFUSED[name]
    with pytest.raises(error, match=pattern.replace("argument 1", "the answer")):
        answering.invoke("answer", name).result()


@pytest.fixture(scope="module")
def answering(runtime: Runtime) -> Any:
    with Runtime("answering") as server:
        server.register("answer")(lambda name: _REFUSED[name][0])
        peer = runtime.connect(server.address)
        yield peer
        peer.close()


class _ByIdentity(str):
    """Keys that differ before they are sent, and are equal afterwards."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_keys_that_become_equal_are_not_dropped_silently(peer: Peer) -> None:
    with pytest.raises(ValueError, match="keys that are equal"):
        peer.invoke("echo", {_ByIdentity("a"): 1, _ByIdentity("a"): 2}).result()


def test_messages_for_mailboxes_name_what_cannot_be_sent(runtime: Runtime) -> None:
    with Runtime("mail") as server:
        box = server.mailbox("box")
        peer = runtime.connect(server.address)
        with pytest.raises(TypeError, match=r"^the message\['a'\]: a value of type set"):
            peer.send("box", {"a": {1}})
        peer.send("box", 1).result()
        assert box.get(10) == 1
        peer.close()
