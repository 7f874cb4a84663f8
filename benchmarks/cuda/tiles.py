"""Times cuBLASLt's kernels for products on a power-limited GPU: the data of csrc/fused/matmul/tile_choice.cpp.

    torchrun --nproc-per-node=2 benchmarks/cuda/tiles.py --json tiles.jsonl
    torchrun --nproc-per-node=2 benchmarks/cuda/tiles.py --rows 2048,8192 --depths 4096 --json tiles.jsonl

Each process takes its share of the shapes, on its own GPU. All kernels that cuBLASLt proposes for a product, and
torch.mm, are timed in alternating order. `--heat` seconds of torch.mm precede each, because the power of one kernel
determines how fast the next one may run. A line is a product: for each proposal, in cuBLASLt's order, it has the tile,
the waves, the bytes of workspace and the microseconds. Proposals a tenth slower than the fastest are timed once.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from torch_axon.bench.record import append_lines

COMPUTE_IN_FLOAT32, FLOAT32 = 68, 0
TYPES = {"float16": 2, "bfloat16": 14}  # cudaDataType
TRANSPOSE_A, MOST_WORKSPACE_BYTES, TILE, NUM_SPLITS = 3, 1, 1, 2  # attributes of descriptions, preferences, algorithms
WORKSPACE_BYTES = 32 << 20
MOST_CANDIDATES = 16
MOST_OF_FASTEST = 1.1

Call = Callable[[], None]


class Candidate(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("num_waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class BlasLt:
    """The library that torch has loaded. Its functions raise if they fail."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
        self.handle = self.make("Create")

    def call(self, name: str, *arguments: object) -> None:
        if status := getattr(self._library, f"cublasLt{name}")(*arguments):
            raise RuntimeError(f"cublasLt{name} has failed with status {status}")

    def make(self, name: str, *arguments: object) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def attribute(self, candidate: Candidate, number: int) -> int:
        value, written = ctypes.c_int32(), ctypes.c_size_t()
        self.call(
            "MatmulAlgoConfigGetAttribute",
            ctypes.byref(candidate.algorithm), number, ctypes.byref(value), 4, ctypes.byref(written),
        )  # fmt: skip
        return value.value


@dataclass(frozen=True)
class Shape:
    """A product [rows, depth] @ [depth, columns]; the second factor may be transposed in memory."""

    rows: int
    depth: int
    columns: int
    weight_is_transposed: bool
    dtype: str


@dataclass(frozen=True)
class Proposal:
    tile: int  # cublasLtMatmulTile_t
    waves: float
    workspace_bytes: int
    us: float


@dataclass(frozen=True)
class Line:
    shape: Shape
    torch_us: float
    proposals: tuple[Proposal, ...]  # in cuBLASLt's order
    gpu: str
    commit: str


class Product:
    """One product, with any proposed kernel. cuBLASLt's matrices are in column-major order, so it multiplies
    transposes.
    """

    def __init__(self, blas: BlasLt, shape: Shape, workspace: Tensor) -> None:
        self._blas, self._workspace = blas, workspace
        m, k, n = shape.rows, shape.depth, shape.columns
        dtype = getattr(torch, shape.dtype)
        self._x = torch.randn(m, k, dtype=dtype, device="cuda")
        weight = torch.randn(*((n, k) if shape.weight_is_transposed else (k, n)), dtype=dtype, device="cuda")
        self._stored, self._weight = weight, weight.t() if shape.weight_is_transposed else weight
        self._output = torch.empty(m, n, dtype=dtype, device="cuda")
        self._description = blas.make("MatmulDescCreate", COMPUTE_IN_FLOAT32, FLOAT32)
        if shape.weight_is_transposed:
            self._set("MatmulDesc", self._description, TRANSPOSE_A, ctypes.c_int32(1))
        self._layouts = [
            blas.make(
                "MatrixLayoutCreate",
                TYPES[shape.dtype], ctypes.c_uint64(matrix.shape[1]), ctypes.c_uint64(matrix.shape[0]),
                ctypes.c_int64(matrix.shape[1]),
            )
            for matrix in (self._stored, self._x, self._output)
        ]  # fmt: skip

    def multiply_by_torch(self) -> None:
        torch.mm(self._x, self._weight, out=self._output)

    def candidates(self) -> list[Candidate]:
        """Returns the proposals that sum up each element without splits."""
        preference = self._blas.make("MatmulPreferenceCreate")
        self._set("MatmulPreference", preference, MOST_WORKSPACE_BYTES, ctypes.c_size_t(WORKSPACE_BYTES))
        found, number = (Candidate * MOST_CANDIDATES)(), ctypes.c_int()
        weight, x, output = self._layouts
        self._blas.call(
            "MatmulAlgoGetHeuristic",
            self._blas.handle, self._description, weight, x, output, output, preference, MOST_CANDIDATES, found,
            ctypes.byref(number),
        )  # fmt: skip
        return [each for each in found[: number.value] if self._blas.attribute(each, NUM_SPLITS) <= 1]

    def multiply_by(self, candidate: Candidate) -> Call:
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        weight, x, output = self._layouts
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

        def data(tensor: Tensor) -> ctypes.c_void_p:
            return ctypes.c_void_p(tensor.data_ptr())

        def multiply() -> None:
            self._blas.call(
                "Matmul",
                self._blas.handle, self._description, ctypes.byref(one), data(self._stored), weight, data(self._x), x,
                ctypes.byref(zero), data(self._output), output, data(self._output), output,
                ctypes.byref(candidate.algorithm), data(self._workspace), ctypes.c_size_t(WORKSPACE_BYTES), stream,
            )  # fmt: skip

        return multiply

    def _set(self, kind: str, of: ctypes.c_void_p, attribute: int, value: ctypes._SimpleCData) -> None:
        self._blas.call(
            f"{kind}SetAttribute", of, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
        )


def microseconds(calls: list[Call], heat: Call, arguments: argparse.Namespace) -> list[float]:
    """Returns the mean of each call over the rounds."""
    num_heating = _number(heat, arguments.heat)
    numbers = [_number(call, arguments.slice) for call in calls]
    times: list[list[float]] = [[] for _ in calls]
    for round_ in range(arguments.rounds):
        fastest = min((min(of_call) for of_call in times if of_call), default=float("inf"))
        for i in list(range(len(calls)))[:: 1 if round_ % 2 == 0 else -1]:
            if not times[i] or times[i][0] < MOST_OF_FASTEST * fastest:
                _time(heat, num_heating)
                times[i].append(_time(calls[i], numbers[i]))
    return [mean(of_call) for of_call in times]


def _number(call: Call, seconds: float) -> int:
    """Returns how many calls take this long, once the kernel is loaded."""
    _time(call, 1)
    return max(3, round(seconds * 1e6 / _time(call, 3)))


def _time(call: Call, number: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(number):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / number


def measure(blas: BlasLt, shape: Shape, workspace: Tensor, arguments: argparse.Namespace) -> Line:
    product = Product(blas, shape, workspace)
    candidates = product.candidates()
    calls = [product.multiply_by_torch, *map(product.multiply_by, candidates)]
    by_torch, *by_candidates = microseconds(calls, product.multiply_by_torch, arguments)
    proposals = tuple(
        Proposal(blas.attribute(each, TILE), round(each.num_waves, 3), each.workspace_bytes, round(us, 2))
        for each, us in zip(candidates, by_candidates, strict=True)
    )
    return Line(shape, round(by_torch, 2), proposals, torch.cuda.get_device_name(), arguments.commit)


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=numbers, default=numbers("2048,4096,8192,16384"))
    parser.add_argument("--depths", type=numbers, default=numbers("4096,8192,16384"))
    parser.add_argument("--columns", type=numbers, default=numbers("4096,8192,16384"))
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["bfloat16", "float16"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--heat", type=float, default=0.1, help="seconds of torch.mm before each slice")
    parser.add_argument("--slice", type=float, default=0.05, help="seconds of a kernel in a round")
    parser.add_argument("--json", type=Path, required=True, help="lines are appended, as each process measures them")
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()

    rank, num_ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    torch.cuda.set_device(rank)
    blas, workspace = BlasLt(), torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    shapes = [
        Shape(*each)
        for each in itertools.product(
            arguments.rows, arguments.depths, arguments.columns, (False, True), arguments.dtypes
        )
    ]
    for shape in shapes[rank::num_ranks]:
        append_lines(arguments.json, [measure(blas, shape, workspace, arguments)])


if __name__ == "__main__":
    main()
