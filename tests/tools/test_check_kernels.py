"""Tests which kernels tools/check_kernels.py takes for kernels that wait for their stream."""

import check_kernels
import pytest


@pytest.mark.parametrize(
    ("body", "waits"),
    [
        ("  await_stream();\n  move(call);", True),
        ("  __shared__ RemoteTensors remotes[16];\n  __shared__ int n;\n  await_stream();", True),
        ("  const uint32_t fault = load(state);\n  await_stream();", False),
        ("  move(call);", False),
        ("", False),
    ],
)
def test_only_shared_memory_may_come_first(body: str, waits: bool) -> None:
    kernel = f"template <int kN>\n__global__ void __launch_bounds__(kN)\n    move_all(int x) {{\n{body}\n}}\n"
    match = check_kernels.KERNEL.search(kernel)
    assert match is not None
    assert check_kernels.waits_first(match["body"]) == waits
