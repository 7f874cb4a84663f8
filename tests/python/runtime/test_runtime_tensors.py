"""Tensors whose elements are not contiguous in memory of their own: the call names their form and sends nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from support.processes import environment
from torch_axon.runtime import Peer, Runtime


class Wrapper(torch.Tensor):
    """A subclass whose elements are another tensor's."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined,no-any-return]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*(a.inner if isinstance(a, Wrapper) else a for a in args), **(kwargs or {}))


class Logged(torch.Tensor):
    """A subclass with elements of its own; operations on it are refused."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} is called")


def _fake(size: int) -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(size)


def _resized(size: int, num_bytes: int) -> torch.Tensor:
    tensor = torch.arange(float(size))
    tensor.untyped_storage().resize_(num_bytes)
    return tensor


_FORMS: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "layout Sparse"),
    "sparse in rows": (lambda: torch.eye(3).to_sparse_csr(), "layout SparseCsr"),
    "MKL-DNN": (lambda: torch.ones(3).to_mkldnn(), "layout Mkldnn"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.arange(4.0), 0.1, 0, torch.quint8), "is quantized"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "NestedTensor .*nested tensor",
    ),
    "meta": (lambda: torch.ones(3, device="meta"), "is on meta"),
    "zeros without memory": (lambda: torch._efficientzerotensor(5), "no memory of its own"),
    "uninitialized": (lambda: torch.nn.LazyLinear(3).weight, "UninitializedParameter"),
    "masked": (
        lambda: torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True])),
        "MaskedTensor .*no memory",
    ),
} | {
    f"{name}, {size}": (lambda make=make, size=size: make(size), pattern)  # type: ignore[misc]
    for size in (10, 100_000)  # with the call, and by itself
    for name, make, pattern in (
        ("fake", _fake, "FakeTensor .*no memory of its own"),
        ("wrapper", lambda size: Wrapper(torch.ones(size)), "Wrapper .*no memory of its own"),
        ("freed", lambda size: _resized(size, 0), "Tensor .*lost its memory"),
        ("cut off", lambda size: _resized(size, 4 * size - 1), r"reaches to byte \d+ of a storage .* \d+ bytes"),
    )
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", _FORMS)
def test_tensors_without_memory_are_refused(peer: Peer, name: str) -> None:
    make, pattern = _FORMS[name]
    with pytest.raises(TypeError, match=f"^argument 1..a..: an? .*{pattern}"):
        peer.invoke("echo", {"a": make()})
    assert torch.equal(peer.invoke("echo", torch.ones(2)).result(), torch.ones(2))


def _refused_inside_vmap(peer: Peer, x: torch.Tensor) -> torch.Tensor:
    with pytest.raises(TypeError, match="no memory of its own"):
        peer.invoke("echo", x)
    return x


def test_tensors_inside_of_vmap_are_refused(peer: Peer) -> None:
    torch.vmap(lambda x: _refused_inside_vmap(peer, x))(torch.ones(3, 4))


@pytest.mark.parametrize("size", [10, 100_000])
def test_subclasses_with_memory_are_sent_as_it_is(peer: Peer, size: int) -> None:
    plain = torch.arange(2.0 * size)
    for view in (plain, plain[::2], plain.reshape(2, size).t()):
        assert torch.equal(peer.invoke("echo", view.as_subclass(Logged)).result(), view)


def test_views_with_the_bits_of_others_are_resolved(peer: Peer) -> None:
    values = torch.randn(70_000, dtype=torch.cfloat)
    for view in (values.conj(), values.conj().imag, values[::3].conj(), torch.view_as_real(values).t()):
        assert torch.equal(peer.invoke("echo", view).result(), view)


@pytest.mark.parametrize("size", [10, 100_000])
def test_answers_are_taken_inside_of_a_dispatch_mode(peer: Peer, size: int) -> None:
    sent = torch.arange(float(size))[::2]
    with FakeTensorMode(allow_non_fake_inputs=True):
        came = peer.invoke("echo", sent).result()
    assert type(came) is torch.Tensor
    assert torch.equal(came, sent)


def test_memory_without_elements_is_refused(peer: Peer) -> None:
    for name, (make, pattern) in _FORMS.items():
        if "10" not in name or "10000" in name:
            continue
        with pytest.raises(ValueError, match=f"memory: the function's tensor 0 .*{pattern.split('.*')[-1]}"):
            peer.invoke("echo", torch.ones(10), memory=lambda coming, make=make: [make()]).result()  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"memory: the function's tensor 0 is not contiguous"):
        peer.invoke("echo", torch.ones(10), memory=lambda coming: [torch.ones(1).expand(10)]).result()


def test_a_parameter_may_be_given_other_memory_while_its_former_one_is_sent(runtime: Runtime) -> None:
    """Swaps tensors as Module.to() and optimizers do; the exposed memory must stay until the answer arrives."""
    parameter = torch.nn.Parameter(torch.full((4 << 20,), 7.0))
    with Runtime("server") as server:
        server.register("total")(lambda tensor: tensor.double().sum().item())
        peer = runtime.connect(server.address)
        future = peer.invoke("total", parameter)
        parameter.data = torch.empty(0)
        assert future.result() == 7.0 * (4 << 20)
        peer.close()


def test_what_is_received_into_may_be_given_other_memory_meanwhile(runtime: Runtime) -> None:
    handed_out = torch.zeros(4 << 20)
    with Runtime("server") as server:
        server.register("ones")(lambda: torch.ones(4 << 20))
        peer = runtime.connect(server.address)
        is_asked = threading.Event()

        def hand_out(coming: object) -> list[torch.Tensor]:
            is_asked.set()
            return [handed_out]

        def take_away(coming: object) -> list[torch.Tensor]:  # on the same thread, once the former has been taken
            handed_out.data = torch.zeros(3)
            return [torch.empty(4 << 20)]

        future = peer.invoke("ones", memory=hand_out)
        assert is_asked.wait(30)
        peer.invoke("ones", memory=take_away).result()
        assert future.result() is handed_out
        assert handed_out.tolist() == [0.0, 0.0, 0.0]
        peer.close()


_DTENSOR = """
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from torch_axon import Runtime

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
sharded = distribute_tensor(torch.arange(12.0).reshape(4, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
with Runtime("server") as runtime:
    runtime.register("echo")(lambda value: value)
    peer = runtime.connect(runtime.address)
    try:
        peer.invoke("echo", {"weight": sharded})
    except TypeError as error:
        print(error)
    assert torch.equal(peer.invoke("echo", sharded.to_local()).result(), torch.arange(12.0).reshape(4, 3))
dist.destroy_process_group()
"""


def test_a_dtensor_is_refused_and_its_shard_is_sent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DTENSOR], env=environment(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "argument 1['weight']: a DTensor that has no memory of its own" in done.stdout
    assert "its to_local() or full_tensor()" in done.stdout
