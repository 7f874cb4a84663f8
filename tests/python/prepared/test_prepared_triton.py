"""The functions for Triton kernels, without a GPU: they compile, and find the members of the transfer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from torch_axon.prepared import include_path

triton = pytest.importorskip("triton")

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


@pytest.mark.parametrize("name", SIGNATURES)
def test_kernels_compile(name: str) -> None:
    from triton.backends.compiler import GPUTarget

    from support import triton_kernels

    constants = {"produce": {"BLOCK": 1024, "direct": True}, "consume": {"BLOCK": 1024}}.get(name, {})
    signature = SIGNATURES[name] | dict.fromkeys(constants, "constexpr")
    source = triton.compiler.ASTSource(getattr(triton_kernels, name), signature, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert ("acquire" if name == "consume" else "release") in compiled.asm["ptx"]
    if name == "produce":  # the credit may be in host memory, which atomics might undo
        assert "ld.acquire.sys.global.u32" in compiled.asm["ptx"]
