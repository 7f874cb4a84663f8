#include "fused/cuda/pushing.hpp"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "base/log.hpp"
#include "c10d/errors.hpp"
#include "cuda/memory.hpp"

namespace axon::fused {

// Below this size, the ranks communicate first: a kernel moves the data before the copy engines have passed their
// barrier.
static constexpr size_t kLeastBytes = size_t{16} << 20;

std::optional<Pushing> Pushing::open(c10d_backend::AxonBackend& backend, at::Device device, const Plan& plan) {
  if (backend.getSize() < 2 || plan.num_bytes < kLeastBytes) return std::nullopt;
  if (!at::isFloatingType(plan.dtype) && !at::isComplexType(plan.dtype)) return std::nullopt;
  c10d_backend::CudaSide& side = backend.cuda_side(device);
  const gpu_comm::Workspace* workspace = side.workspace(plan.workspace_bytes, backend.timeout());
  if (workspace == nullptr) return std::nullopt;
  const gpu_comm::StreamBarrier barrier{.operation = plan.operation,
                                        .dtype = c10d_backend::to_data_type(plan.dtype),
                                        .descriptor = gpu_comm::BarrierDescriptor::of(plan.num_bytes, plan.shared),
                                        .timeout = backend.timeout()};
  return Pushing(side, workspace, barrier, backend.getRank());
}

Pushing::Pushing(c10d_backend::CudaSide& side, const gpu_comm::Workspace* workspace,
                 const gpu_comm::StreamBarrier& barrier, int rank)
    : side_(side),
      workspace_(workspace),
      barrier_(barrier),
      rank_(rank),
      current_(side.current_stream()),
      pushing_(side.side_stream()),
      awaiting_(side.awaiting_stream()) {}

Pushing::~Pushing() {
  if (!is_open_) return;
  side_.give_up();
  try {
    join();
  } catch (const std::exception&) {
    log::info("CUDA has failed: a matrix product's tensors may still be read");
  }
}

void Pushing::begin() {
  side_.enqueue_barrier(barrier_, current_);
  is_open_ = true;
  follow_current();
  side_.order(current_, awaiting_);
  awaiting_is_ahead_ = true;
}

void Pushing::await(int tile) {
  side_.await(*workspace_, tile);
  side_.order(awaiting_, current_);
  awaiting_is_ahead_ = false;
}

void Pushing::join() {
  side_.order(pushing_, current_);
  if (awaiting_is_ahead_) side_.order(awaiting_, current_);
  is_open_ = false;
}

void Pushing::reduce(size_t slot_bytes, Reduction reduction, const at::Tensor& output) const {
  const Status reduced = workspace_->reduce(rank_,
                                            {.slot_bytes = slot_bytes,
                                             .output = static_cast<std::byte*>(output.mutable_data_ptr()),
                                             .num_elements = static_cast<size_t>(output.numel()),
                                             .dtype = c10d_backend::to_data_type(output.scalar_type()),
                                             .reduction = reduction},
                                            cuda::StreamView(static_cast<cudaStream_t>(current_.native_handle())));
  if (!reduced.ok()) c10d_backend::throw_failure(reduced);
}

at::Tensor Pushing::tensor(size_t offset, at::IntArrayRef sizes, const at::TensorOptions& options) const {
  return at::for_blob(workspace_->at(rank_) + offset, sizes)
      .options(options)
      .target_device(options.device())
      .make_tensor();
}

void Pushing::copy(void* target, const at::Tensor& source, c10::Stream stream) {
  const cuda::StreamView view(static_cast<cudaStream_t>(stream.native_handle()));
  const Status copied = copy_async(target, source.const_data_ptr(), source.nbytes(), view);
  if (!copied.ok()) c10d_backend::throw_failure(copied);
}

}  // namespace axon::fused
