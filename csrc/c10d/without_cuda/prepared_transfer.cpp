// Replaces cuda/prepared_transfer.cpp in builds with AXON_CUDA=0, which have no CUDA tensors to prepare.
#include "c10d/prepared_transfer.hpp"

#include "c10d/errors.hpp"

namespace axon::c10d_backend {

struct PreparedTransfer::Cuda {};

uintptr_t PreparedTransfer::memory_stream(int) {
  return 0;
}
size_t PreparedTransfer::record_bytes(size_t, uint32_t) noexcept {
  return 0;
}

PreparedTransfer::PreparedTransfer(c10::intrusive_ptr<AxonBackend> backend, at::Tensor tensor, at::Tensor record,
                                   const Wish& wish)
    : backend_(std::move(backend)), tensor_(std::move(tensor)), record_(std::move(record)), wish_(wish), cuda_side_(0) {
  throw_value_error("torch_axon was built without CUDA (AXON_CUDA=0), and the tensor is on " + tensor_.device().str() +
                    "; allowed: tensors on the CPU");
}

PreparedTransfer::~PreparedTransfer() = default;
void PreparedTransfer::close() noexcept {}
bool PreparedTransfer::has_ended() const {
  return true;
}
void PreparedTransfer::open(const std::string&) {}
void PreparedTransfer::open_through_host(uint32_t) {}
uint32_t PreparedTransfer::most_host_partitions() noexcept {
  return 0;
}
void PreparedTransfer::start() {}
void PreparedTransfer::ready(uint32_t, uint32_t) {}
void PreparedTransfer::arrived(uint32_t, uint32_t) {}
void PreparedTransfer::wait() {}
uintptr_t PreparedTransfer::add_to(uintptr_t, const std::vector<uintptr_t>&, const std::string&, uint32_t, uint32_t) {
  return 0;
}
uintptr_t PreparedTransfer::device_handle() {
  return 0;
}

}  // namespace axon::c10d_backend
