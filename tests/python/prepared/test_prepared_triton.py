"""The functions for Triton kernels, without a GPU: they compile, and find the members of the transfer."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from support.processes import environment, output_of
from torch_axon.prepared import include_path

triton = pytest.importorskip("triton")

EXAMPLES = str(Path(__file__).parents[3] / "examples")
HEADER = Path(include_path()) / "axon/device.cuh"


def test_the_members_are_where_the_header_has_them() -> None:
    from torch_axon import triton as functions

    body = re.search(r"struct PreparedTransfer \{(.*?)\n\};", HEADER.read_text(encoding="utf-8"), re.DOTALL)
    assert body
    members = re.findall(r"^\s*[^/;]*?(\w+);", body[1], re.MULTILINE)
    assert members[-2:] == ["peer", "tag"]  # in one word of 8 bytes; all others have one
    words = {name.upper(): number for number, name in enumerate(members[:-1])} | {"PEER_AND_TAG": len(members) - 2}
    found = {name: getattr(functions, f"_{name}").value for name in words if hasattr(functions, f"_{name}")}
    assert found == {name: words[name] for name in found}
    assert {"CREDIT", "DONE", "NUM_FINISHED", "PEER_AND_TAG", "STARTED", "TARGET", "WAITED"} <= found.keys()


SIGNATURES = {
    "produce": {"request": "i64", "tensor": "*fp32", "step": "*i32", "size": "i32"},
    "name_partitions": {"request": "i64", "found": "*i32"},
    "consume": {"request": "i64", "tensor": "*fp32", "step": "*i32", "wrong": "*i32", "num_partitions": "i32",
                "size": "i32"},
}  # fmt: skip


def _ptx_of(name: str, **constants: object) -> str:
    """Compiles a kernel of triton_kernels."""
    from triton.backends.compiler import GPUTarget

    from support import triton_kernels

    signature = SIGNATURES[name] | dict.fromkeys(constants, "constexpr")
    source = triton.compiler.ASTSource(getattr(triton_kernels, name), signature, constants)
    ptx: str = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    return ptx


@pytest.mark.parametrize("name", SIGNATURES)
def test_kernels_compile(name: str) -> None:
    constants = {"produce": {"BLOCK": 1024, "direct": True}, "consume": {"BLOCK": 1024}}.get(name, {})
    ptx = _ptx_of(name, **constants)
    assert ("acquire" if name == "consume" else "release") in ptx
    if name == "produce":  # the credit may be in host memory, which atomics might undo
        assert "ld.acquire.sys.global.u32" in ptx


def test_partitions_are_copied_by_vectors_of_16_bytes() -> None:
    ptx = _ptx_of("produce", BLOCK=1024, direct=False)
    assert ptx.count("ld.global.v4.b32") > 0
    assert ptx.count("st.global.v4.b32") > 0


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("handles", [("arriving",), ("leaving",), ("arriving", "leaving"), ()])
def test_the_kernel_of_a_pipeline_compiles(
    handles: tuple[str, ...], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.backends.compiler import GPUTarget

    monkeypatch.syspath_prepend(EXAMPLES)
    import triton_rows

    kernel = triton_rows.multiply
    tensors = ("gradient", "output", "weight", "product")
    constants = dict.fromkeys({"arriving", "leaving"}.difference(handles)) | {
        "WIDTH": 1024, "ROWS": 64, "COLUMNS": triton_rows.COLUMNS, "DEPTH": 32, "PRECISION": precision,
    }  # fmt: skip
    types = dict.fromkeys(tensors, "*fp32") | dict.fromkeys(handles, "i64") | dict.fromkeys(constants, "constexpr")
    aligned = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in (*tensors, *handles)}
    source = triton.compiler.ASTSource(kernel, {name: types[name] for name in kernel.arg_names}, constants, aligned)
    ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8}).asm["ptx"]
    assert ("acquire" in ptx) == bool(handles)
    assert ("ld.acquire.sys" in ptx) == ("leaving" in handles)  # the credit
    assert "st.global.v4.b32" in ptx  # also where the address is the receiver's
    assert ("wgmma" in ptx) == (precision == "tf32")


# Stands in for the functions of torch_axon.triton, of which the interpreter lacks the instructions. The handle of a
# request is the receiver's tensor here.
PRODUCT = """
from types import SimpleNamespace
import torch
import triton.language as tl
import triton_rows

published = []

def publish(request, partition, num_programs):
    published.append((partition.handle.data.item(), num_programs))

triton_rows.axon = SimpleNamespace(
    wait=lambda request, partition: 1,
    begin=lambda request, partition: request + partition.to(tl.int64) * 16 * 256 * 4,
    publish=publish,
)
torch.manual_seed(0)
gradient, output, weight = torch.randn(64, 256), torch.randn(64, 256).tanh(), torch.randn(256, 256)
expected = (gradient * (1 - output * output)) @ weight
for is_sent in (False, True):
    product, received = torch.zeros(64, 256), torch.zeros(64, 256)
    handles = (None, received.data_ptr()) if is_sent else (1 << 40, None)
    triton_rows.launch(gradient, output, weight, product, 16, *handles)
    torch.testing.assert_close(received if is_sent else product, expected, rtol=1e-4, atol=1e-4)
assert published == [(partition, 2) for partition in range(4) for tile in range(2)], published
"""


def test_the_kernel_of_a_pipeline_multiplies() -> None:
    paths = os.pathsep.join((EXAMPLES, environment()["PYTHONPATH"]))
    output_of([sys.executable, "-c", PRODUCT], TRITON_INTERPRET="1", PYTHONPATH=paths)
