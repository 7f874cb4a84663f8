"""The kernels of the benchmarks of prepared requests: they send and await partitions."""

from __future__ import annotations

from collections.abc import Callable

import torch

import torch_axon

KERNELS = r"""
#include <axon/device.cuh>

// `requests`: one to send and one to receive.
extern "C" __global__ void ping(axon::PreparedTransfer* const* requests, int count, int begins) {
  for (int i = 0; i < count; ++i) {
    if (begins && !axon::pready(requests[0], i)) return;
    if (!axon::wait(requests[1], i)) return;
    if (!begins && !axon::pready(requests[0], i)) return;
  }
}

__device__ unsigned long long now() {
  unsigned long long ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Block i makes partition i, step_ns after the block before it.
extern "C" __global__ void make(axon::PreparedTransfer* const* requests, float* tensor, int size, int step_ns,
                                int sends) {
  const unsigned long long begin = now();
  while (now() - begin < static_cast<unsigned long long>(step_ns) * (blockIdx.x + 1)) continue;
  for (int i = threadIdx.x; i < size; i += blockDim.x) tensor[blockIdx.x * size + i] = blockIdx.x * size + i;
  if (sends) axon::pready(requests[0], blockIdx.x);
}
extern "C" __global__ void send(axon::PreparedTransfer* const* requests, unsigned long long* times) {
  if (threadIdx.x == 0) times[blockIdx.x] = now();
  axon::pready(requests[0], blockIdx.x);
}
extern "C" __global__ void receive(axon::PreparedTransfer* const* requests, unsigned long long* times) {
  if (axon::wait(requests[0], blockIdx.x) && threadIdx.x == 0) times[blockIdx.x] = now();
}
"""


def kernel(name: str) -> Callable[..., None]:
    """Returns a kernel of KERNELS, which is called with its grid, its blocks and its arguments."""
    compiled: Callable[..., None] = torch.cuda._compile_kernel(
        KERNELS, name, cuda_include_dirs=[torch_axon.prepared.include_path()]
    )
    return compiled
