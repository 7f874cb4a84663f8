"""CUDA kernels that send and await partitions of prepared requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

import torch_axon
from support.conditional_graphs import repeated
from support.graphs import num_replays
from support.prepared import prepare_pair

KERNELS = r"""
#include <axon/device.cuh>

// Each block makes some partitions, in another order at each step, and sends each as soon as it is made.
extern "C" __global__ void produce(axon::PreparedTransfer* const* request, float* tensor, int* step, int num_partitions,
                                   int size) {
  for (int k = blockIdx.x; k < num_partitions; k += gridDim.x) {
    const int partition = (k * 7 + *step) % num_partitions;  // their number is no multiple of 7
    for (int i = threadIdx.x; i < size; i += blockDim.x) tensor[partition * size + i] = *step + partition * size + i;
    if (!axon::pready(*request, partition)) return;
  }
}
extern "C" __global__ void produce_there(axon::PreparedTransfer* const* request, float* tensor, int* step,
                                         int num_partitions, int size) {
  for (int partition = blockIdx.x; partition < num_partitions; partition += gridDim.x) {
    auto* target = static_cast<float*>(axon::begin(*request, partition));
    if (target == nullptr) return;
    for (int i = threadIdx.x; i < size; i += blockDim.x) target[i] = *step + partition * size + i;
    axon::publish(*request, partition);
  }
}
extern "C" __global__ void consume(axon::PreparedTransfer* const* request, float* tensor, int* step, int num_partitions,
                                   int size, int* wrong) {
  for (int partition = blockIdx.x; partition < num_partitions; partition += gridDim.x) {
    if (!axon::wait(*request, partition)) return;
    if (!axon::parrived(*request, partition)) atomicAdd(wrong, 1);
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
      if (tensor[partition * size + i] != *step + partition * size + i) atomicAdd(wrong, 1);
    }
  }
}
extern "C" __global__ void misuse(axon::PreparedTransfer* const* request, int partition, int times) {
  for (int k = 0; k < times; ++k) axon::pready(*request, partition);
}
// One round trip after the other. `requests`: one to send and one to receive.
extern "C" __global__ void ping(axon::PreparedTransfer* const* requests, int count, int begins) {
  for (int i = 0; i < count; ++i) {
    if (begins && !axon::pready(requests[0], i)) return;
    if (!axon::wait(requests[1], i)) return;
    if (!begins && !axon::pready(requests[0], i)) return;
  }
}
"""


def kernel_of(name: str) -> Callable[..., None]:
    """Returns a kernel of KERNELS, which is called with its grid, its blocks and its arguments."""
    kernel: Callable[..., None] = torch.cuda._compile_kernel(
        KERNELS, name, cuda_include_dirs=[torch_axon.prepared.include_path()]
    )
    return kernel


_NUM_PARTITIONS, _SIZE = 24, 1000  # of the pairs below; the size in elements


@dataclass(frozen=True)
class Pair:
    """A transfer from rank 0, whose kernel sends the partitions, to rank 1, whose kernel awaits and checks them."""

    once: Callable[[], None]
    step: Tensor  # the number of calls of `once` that the GPU has made
    wrong: Tensor


@contextmanager
def cuda_pair(producer: str) -> Iterator[Pair]:
    """Prepares a transfer by CUDA kernels; `producer` is the one of the sender. Calls may be captured."""
    tensor = torch.empty(_NUM_PARTITIONS * _SIZE, dtype=torch.float32)
    step, wrong = torch.zeros((), dtype=torch.int32), torch.zeros((), dtype=torch.int32)
    with prepare_pair(tensor, _NUM_PARTITIONS) as request:
        handle = torch.tensor([request.device_handle])
        kernel = kernel_of(producer if dist.get_rank() == 0 else "consume")
        arguments = [handle, tensor, step, _NUM_PARTITIONS, _SIZE] + ([wrong] if dist.get_rank() == 1 else [])

        def once() -> None:
            request.start()
            kernel((8, 1, 1), (256, 1, 1), arguments)
            request.wait()
            step.add_(1)

        yield Pair(once, step, wrong)


def start_in_a_loop(producer: str) -> None:
    """Starts a transfer in a graph that decides on the GPU how often it does so."""
    with cuda_pair(producer) as pair:
        again, last = torch.ones((), dtype=torch.int32), torch.ones((), dtype=torch.int32)

        def body() -> None:
            pair.once()
            torch.lt(pair.step, last, out=again)

        pair.once()
        with repeated(body, again) as launch:
            for _ in range(3):
                last.add_(num_replays() // 4)
                launch()
            torch.cuda.synchronize()
        assert int(pair.step) == 1 + 3 * (num_replays() // 4)
        assert int(pair.wrong) == 0


def send_by_triton(num_steps: int) -> None:
    """Sends by Triton kernels, and checks what arrives: from the sender's tensor, and then directly."""
    from support.triton_kernels import consume, produce

    tensor = torch.empty(_NUM_PARTITIONS * _SIZE, dtype=torch.float32)
    step, wrong = torch.zeros((), dtype=torch.int32), torch.zeros((), dtype=torch.int32)
    with prepare_pair(tensor, _NUM_PARTITIONS) as request:
        for direct in (False, True):
            for _ in range(num_steps):
                request.start()
                if dist.get_rank() == 0:
                    produce[(_NUM_PARTITIONS,)](request.device_handle, tensor, step, _SIZE, direct, 1024)
                else:
                    consume[(8,)](request.device_handle, tensor, step, wrong, _NUM_PARTITIONS, _SIZE, 1024)
                request.wait()
                step.add_(1)
        torch.cuda.synchronize()
        assert int(wrong) == 0
