#include "runtime_python/lending.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "base/config.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/stream.hpp"
#include "stream/lending.hpp"

namespace axon {

static_assert(sizeof(LentPlace) == sizeof(Whereabouts));

static void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <typename T>
static T value_of(Result<T> result) {
  if (!result.ok()) check(result.status());
  return std::move(result).value();
}

static StreamView current_stream(at::Device device) {
  return StreamView(
      static_cast<cudaStream_t>(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device).native_handle()));
}

// Memory that a capture has made holds nothing yet.
static void wait_for(StreamView stream) {
  if (value_of(is_capturing(stream))) {
    throw std::runtime_error("a tensor cannot be sent while its stream is captured into a CUDA graph");
  }
  if (!stream.is_idle()) check(stream.synchronize());
}

std::optional<Whereabouts> lend(const at::Tensor& tensor) {
  const c10::DeviceGuard guard(tensor.device());
  Result<LentPlace> place = lend(tensor.get_device(), tensor.const_data_ptr(), tensor.nbytes());
  if (!place.ok()) return std::nullopt;
  wait_for(current_stream(tensor.device()));
  return std::bit_cast<Whereabouts>(place.value());
}

void borrow(Inbound::Tensor& lent, const at::Tensor& target) {
  const int device = target.is_cuda() ? target.get_device() : current_device();
  const c10::DeviceGuard guard({at::kCUDA, static_cast<c10::DeviceIndex>(device)});
  const StreamView stream = current_stream({at::kCUDA, static_cast<c10::DeviceIndex>(device)});
  Borrower& borrower = *value_of(Borrower::of(device));
  const Buffer buffer{static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()};
  check(borrower.read(std::bit_cast<LentPlace>(lent.whereabouts), buffer, stream));
  if (target.is_cpu()) {
    check(stream.synchronize());
    lent.loan = Loan();
    return;
  }
  auto* const loan = new Loan(std::move(lent.loan));
  const Status called = borrower.call_behind(stream, [](void* read) { delete static_cast<Loan*>(read); }, loan);
  if (called.ok()) return;
  check(stream.synchronize());
  delete loan;
  check(called);
}

static bool is_allowed() {
  return config::text("AXON_TRANSPORTS").find("cuda") != std::string::npos;
}

std::vector<std::string> readable_gpus() {
  std::vector<std::string> uuids;
  if (!is_allowed()) return uuids;
  const int count = num_devices();
  for (int gpu = 0; gpu < count; ++gpu) {
    bool by_all = true;
    for (int reader = 0; reader < count; ++reader) by_all &= reader == gpu || can_access(reader, gpu);
    const Result<DeviceUuid> uuid = uuid_of(gpu);
    if (by_all && uuid.ok()) uuids.emplace_back(uuid.value().begin(), uuid.value().end());
  }
  return uuids;
}

uint64_t own_gpus_among(const std::vector<std::string>& uuids) {
  uint64_t gpus = 0;
  if (!is_allowed()) return gpus;
  for (int gpu = 0; gpu < std::min(num_devices(), 64); ++gpu) {
    const Result<DeviceUuid> own = uuid_of(gpu);
    const bool is_among =
        own.ok() && std::ranges::find(uuids, std::string(own.value().begin(), own.value().end())) != uuids.end();
    if (is_among) gpus |= uint64_t{1} << gpu;
  }
  return gpus;
}

}  // namespace axon
