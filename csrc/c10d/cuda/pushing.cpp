#include "c10d/cuda/pushing.hpp"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "base/log.hpp"
#include "c10d/errors.hpp"
#include "cuda/memory.hpp"

namespace axon {

// Less is moved first: a kernel does that before the copy engines have met.
static constexpr size_t kLeastBytes = size_t{16} << 20;

std::optional<Pushing> Pushing::open(AxonBackend& backend, at::Device device, const Plan& plan) {
  if (backend.getSize() < 2 || plan.num_bytes < kLeastBytes) return std::nullopt;
  if (!at::isFloatingType(plan.dtype) && !at::isComplexType(plan.dtype)) return std::nullopt;
  CudaSide& side = backend.cuda_side(device);
  const Workspace* workspace = side.workspace(plan.workspace_bytes, backend.timeout());
  if (workspace == nullptr) return std::nullopt;
  const Meeting meeting{.operation = plan.operation,
                        .dtype = to_data_type(plan.dtype),
                        .num_bytes = plan.num_bytes,
                        .timeout = backend.timeout()};
  return Pushing(side, workspace, meeting, backend.getRank());
}

Pushing::Pushing(CudaSide& side, const Workspace* workspace, const Meeting& meeting, int rank)
    : side_(side),
      workspace_(workspace),
      meeting_(meeting),
      rank_(rank),
      current_(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(side.device())),
      pushing_(side.side_stream()) {}

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
  side_.meet(meeting_, current_);
  is_open_ = true;
  follow_current();
}

void Pushing::join() {
  block_current();
  is_open_ = false;
}

at::Tensor Pushing::tensor(size_t offset, at::IntArrayRef sizes, const at::TensorOptions& options) const {
  return at::for_blob(workspace_->at(rank_) + offset, sizes)
      .options(options)
      .target_device(options.device())
      .make_tensor();
}

void Pushing::order(c10::Stream earlier, c10::Stream later) {
  c10::Event passed(at::kCUDA);
  passed.record(earlier);
  passed.block(later);
}

void Pushing::copy(std::byte* target, const at::Tensor& source) {
  const StreamView stream(static_cast<cudaStream_t>(pushing_.native_handle()));
  const Status copied = copy_async(target, source.const_data_ptr(), source.nbytes(), stream);
  if (!copied.ok()) throw_failure(copied);
}

}  // namespace axon
