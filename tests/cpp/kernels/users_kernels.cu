// Kernels of a user, compiled to check that axon/device.cuh needs only C++17 and nothing else of axon.
#include "kernels/device.cuh"

__global__ void produce(axon::PreparedTransfer* request, float* tensor, int size) {
  for (int i = threadIdx.x; i < size; i += blockDim.x) tensor[blockIdx.x * size + i] = static_cast<float>(i);
  axon::pready(request, blockIdx.x);
}

__global__ void produce_there(axon::PreparedTransfer* request, int size) {
  auto* target = static_cast<float*>(axon::begin(request, blockIdx.x));
  if (target == nullptr) return;
  for (int i = threadIdx.x; i < size; i += blockDim.x) target[i] = static_cast<float>(i);
  axon::publish(request, blockIdx.x);
}

__global__ void consume(axon::PreparedTransfer* request, const float* tensor, float* sum, int size) {
  if (!axon::parrived(request, blockIdx.x) && !axon::wait(request, blockIdx.x)) return;
  for (int i = threadIdx.x; i < size; i += blockDim.x) atomicAdd(sum, tensor[blockIdx.x * size + i]);
}
