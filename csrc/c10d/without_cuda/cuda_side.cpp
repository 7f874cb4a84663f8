// Replaces cuda/cuda_side.cpp in builds with AXON_CUDA=0.
#include "c10d/cuda_side.hpp"

#include "c10d/errors.hpp"

namespace axon::cuda {
class Event {};
}  // namespace axon::cuda
namespace axon::gpu_comm {
class CapturedSlots {};
class DeviceGroup {};
class Workspace {};
}  // namespace axon::gpu_comm

namespace axon::c10d_backend {

CudaSide::CudaSide(std::shared_ptr<engine::Communicator> communicator, at::Device device, std::chrono::milliseconds,
                   uint32_t /*round*/)
    : communicator_(std::move(communicator)),
      device_(device),
      serial_(0),
      streams_(c10::Stream(c10::Stream::DEFAULT, device)),
      most_workspace_bytes_(0) {
  throw_value_error("torch_axon was built without CUDA (AXON_CUDA=0), and the tensors are on " + device.str() +
                    "; allowed: tensors on the CPU");
}

CudaSide::~CudaSide() = default;
void CudaSide::enqueue(AxonWork&, Timing) {}
void CudaSide::start_after_current_stream(WorkOperation&) {}
void CudaSide::drain() noexcept {}
bool has_passed(const c10::Event&) {
  return true;
}
bool is_capturing(c10::Stream) {
  return false;
}
void CudaSide::finish() {}
void give_back_arenas() noexcept {}
CudaSide::Memory CudaSide::memory() {
  return {};
}
GpuPath CudaSide::path_to(int) {
  return {};
}
bool CudaSide::has_link(int) {
  return false;
}
std::string_view CudaSide::kernel_for(transport::OperationKind, size_t) const {
  return {};
}
std::string_view typical_kernel(transport::OperationKind, int, size_t, const collectives::AlgorithmOverrides&) {
  return {};
}
uint64_t CudaSide::num_zero_copy() const {
  return 0;
}

}  // namespace axon::c10d_backend
