"""CUDA kernels that send and await partitions of prepared requests."""

from __future__ import annotations

from collections.abc import Callable

import torch

import torch_axon

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
