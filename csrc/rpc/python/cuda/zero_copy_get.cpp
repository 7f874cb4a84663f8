#include "rpc/python/zero_copy_get.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "base/config.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/stream.hpp"
#include "ipc/peer_process.hpp"
#include "ipc/stream_marker.hpp"
#include "ipc/zero_copy_get.hpp"

namespace axon::rpc_python {

static_assert(sizeof(ipc::ExposedLocation) == sizeof(rpc::MemoryHandle));

static void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <typename T>
static T value_of(Result<T> result) {
  if (!result.ok()) check(result.status());
  return std::move(result).value();
}

static cuda::StreamView current_stream(at::Device device) {
  return cuda::StreamView(
      static_cast<cudaStream_t>(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device).native_handle()));
}

void check_not_captured(at::Device gpu) {
  if (value_of(is_capturing(current_stream(gpu)))) {
    throw std::runtime_error("a tensor cannot be sent while its stream is captured into a CUDA graph");
  }
}

std::optional<rpc::MemoryHandle> expose(const at::Tensor& tensor) {
  Result<ipc::ExposedLocation> place = ipc::expose(tensor.get_device(), tensor.const_data_ptr(), tensor.nbytes());
  if (!place.ok()) return std::nullopt;
  return std::bit_cast<rpc::MemoryHandle>(place.value());
}

void leave_after_current_stream(rpc::Outbound& outbound, at::Device gpu) {
  const cuda::RelaxedCapture beside_captures;
  const c10::DeviceGuard guard(gpu);
  const cuda::StreamView stream = current_stream(gpu);
  if (stream.is_idle()) return;
  auto marker = std::make_shared<ipc::StreamMarker>(value_of(ipc::StreamMarker::set(stream)));
  const std::atomic<uint32_t>& flag = marker->flag();
  outbound.leave_when(flag, Owner::of(std::move(marker)));
}

namespace {

// Acknowledges an exposed tensor after its copy, once the stream marker is passed.
class Ack final : public engine::Submission, private engine::FlagWaiter {
 public:
  Ack(engine::Engine& engine, ipc::StreamMarker read, rpc::Exposure exposure) noexcept
      : engine_(engine), read_(std::move(read)), exposure_(std::move(exposure)) {}

 private:
  void begin() noexcept override { engine_.wait_for_flag(*this, read_.flag()); }
  void on_flag_set() noexcept override { delete this; }
  void complete() noexcept override {}

  engine::Engine& engine_;
  const ipc::StreamMarker read_;
  const rpc::Exposure exposure_;
};

}  // namespace

void read_exposed(rpc::Inbound::Tensor& exposed, const at::Tensor& target, const rpc::Connection& peer) {
  const int known = peer.zero_copy.gpu.load();
  if (known < 0 || !peer.is_neighbour())
    throw NotReadable("the peer sent a GPU tensor by reference, but this process has not agreed to that");
  const at::Device gpu =
      target.is_cuda() ? target.device() : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(known));
  const cuda::RelaxedCapture beside_captures;
  const c10::DeviceGuard guard(gpu);
  const cuda::StreamView stream = current_stream(gpu);
  const Buffer buffer{static_cast<std::byte*>(target.mutable_data_ptr()), target.nbytes()};
  const auto place = std::bit_cast<ipc::ExposedLocation>(exposed.memory_handle);
  const Status read =
      value_of(ipc::ZeroCopyReader::of(gpu.index()))->read(peer.identity().address.pid, place, buffer, stream);
  if (!read.ok() && read.code() == ErrorCode::kPeerLost) throw NotReadable(read.message());
  check(read);
  if (target.is_cpu()) {
    check(stream.synchronize());
    exposed.exposure = rpc::Exposure();
    return;
  }
  engine::Engine& engine = peer.engine();
  engine.submit(*new Ack(engine, value_of(ipc::StreamMarker::set(stream)), std::move(exposed.exposure)));
}

// Empty if the driver does not report it.
static std::optional<std::string> uuid_text(int gpu) {
  Result<cuda::DeviceUuid> uuid = cuda::uuid_of(gpu);
  if (!uuid.ok()) return std::nullopt;
  return std::string(uuid.value().begin(), uuid.value().end());
}

void let_peers_read() noexcept {
  [[maybe_unused]] static const bool once = [] {
    if (config::has_transport("cuda")) ipc::PeerProcess::allow_peers();
    return true;
  }();
}

std::vector<std::string> gpus_readable_of(const rpc::Connection& peer) {
  std::vector<std::string> uuids;
  if (!config::has_transport("cuda")) return uuids;
  Result<ipc::PeerProcess> process = ipc::PeerProcess::open(peer.identity().address.pid);
  if (!process.ok() || !process.value().may_be_read()) return uuids;
  const int count = cuda::num_devices();
  for (int gpu = 0; gpu < count; ++gpu) {
    bool by_all = true;
    for (int reader = 0; reader < count; ++reader) by_all &= reader == gpu || cuda::can_access(reader, gpu);
    const std::optional<std::string> uuid = uuid_text(gpu);
    if (by_all && uuid) uuids.push_back(*uuid);
  }
  return uuids;
}

uint64_t own_gpus_among(const std::vector<std::string>& uuids) {
  uint64_t gpus = 0;
  if (!config::has_transport("cuda")) return gpus;
  for (int gpu = 0; gpu < std::min(cuda::num_devices(), 64); ++gpu) {
    if (std::ranges::find(uuids, uuid_text(gpu)) != uuids.end()) gpus |= uint64_t{1} << gpu;
  }
  return gpus;
}

}  // namespace axon::rpc_python
