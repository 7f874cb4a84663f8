#include "c10d/prepared_transfer.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "c10d/cuda/conversions.hpp"
#include "cuda/capture.hpp"
#include "gpu_comm/partitioned_transfer.hpp"

namespace axon::c10d_backend {

namespace {

// Streams for kernels that wait for a peer's start. Those of torch's pool carry other work, which would wait, too. They
// are never destroyed, since groups refer to them.
class OwnStreams {
 public:
  static OwnStreams& instance() {
    static auto* const streams = new OwnStreams;
    return *streams;
  }

  // Returns an idle stream of the current device.
  cuda::Stream take(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<cuda::Stream>& free = free_[device];
    const auto found = std::ranges::find_if(free, [](const cuda::Stream& stream) { return stream.view().is_idle(); });
    if (found == free.end()) return value_of(cuda::Stream::create());
    cuda::Stream stream = std::move(*found);
    free.erase(found);
    return stream;
  }

  void give_back(int device, cuda::Stream stream) {
    const std::lock_guard lock(mutex_);
    free_[device].push_back(std::move(stream));
  }

  cuda::StreamView for_memory(int device) {
    const std::lock_guard lock(mutex_);
    const auto found = for_memory_.find(device);
    if (found != for_memory_.end()) return found->second;
    return for_memory_.emplace(device, value_of(cuda::Stream::create())).first->second;
  }

 private:
  std::mutex mutex_;  // guards both
  std::map<int, std::vector<cuda::Stream>> free_;
  std::map<int, cuda::Stream> for_memory_;
};

}  // namespace

struct PreparedTransfer::Cuda {
  gpu_comm::TransferEnd end;
  cuda::Event event;
  std::optional<gpu_comm::PartitionedTransfer> transfer;  // from open() to close()
  std::vector<cuda::Event> ends;                          // of what was queued at close()
  // The stream on which start() sends a large whole tensor. The kernel waits for the peer's start, so on the caller's
  // stream it would delay what comes next there, such as a receive from that peer.
  std::optional<cuda::Stream> own_stream;
  std::optional<cuda::StreamView> started_on;
  // The stream of the kernel that copies what has arrived in host memory.
  std::optional<cuda::Stream> draining;

  void order(cuda::StreamView earlier, cuda::StreamView later) const {
    check(earlier.record(event));
    check(later.wait(event));
  }
};

bool CudaSide::has_link(int peer) {
  const c10::DeviceGuard on_device(device_);
  return value_of(group_->has_link(peer));
}

c10::Stream CudaSide::begin_step() {
  const c10::Stream stream = current_stream();
  const std::lock_guard lock(mutex_);
  check_health();
  streams_.note_use(stream);
  return stream;
}

size_t PreparedTransfer::record_bytes(size_t tensor_bytes, uint32_t num_partitions) noexcept {
  return gpu_comm::record_bytes({.num_bytes = tensor_bytes, .num_partitions = num_partitions});
}

uintptr_t PreparedTransfer::memory_stream(int device) {
  const c10::DeviceGuard on_device(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(device)));
  return reinterpret_cast<uintptr_t>(OwnStreams::instance().for_memory(device).get());
}

PreparedTransfer::PreparedTransfer(c10::intrusive_ptr<AxonBackend> backend, at::Tensor tensor, at::Tensor record,
                                   const Wish& wish)
    : backend_(std::move(backend)),
      tensor_(std::move(tensor)),
      record_(std::move(record)),
      wish_(wish),
      cuda_side_(backend_->cuda_side(tensor_.device()).serial()),
      is_ready_(std::max(wish.num_partitions, 1u)) {
  const c10::DeviceGuard on_device(tensor_.device());
  const cuda::RelaxedCapture beside_captures;  // another thread may capture
  cuda_.reset(new Cuda{.end = {.is_sender = wish.is_sender,
                               .peer = wish.peer,
                               .tag = wish.tag,
                               .dtype = to_data_type(tensor_.scalar_type()),
                               .tensor = static_cast<std::byte*>(tensor_.mutable_data_ptr()),
                               .num_bytes = tensor_.nbytes(),
                               .num_partitions = wish.num_partitions,
                               .record = static_cast<std::byte*>(record_.mutable_data_ptr()),
                               .timeout = wish.timeout},
                       .event = value_of(cuda::Event::create_untimed()),
                       .transfer = std::nullopt,
                       .ends = {},
                       .own_stream = std::nullopt,
                       .started_on = std::nullopt,
                       .draining = std::nullopt});
  if (gpu_comm::waits_for_credit_at_start(cuda_->end)) {
    cuda_->own_stream = OwnStreams::instance().take(tensor_.device().index());
  }
  const Result<gpu_comm::TransferAddress> address = gpu_comm::address_of(side().device_group(), cuda_->end);
  if (address.ok()) {
    address_.assign(reinterpret_cast<const char*>(&address.value()), sizeof(gpu_comm::TransferAddress));
  } else {
    log::info(address.status().message());
  }
}

PreparedTransfer::~PreparedTransfer() {
  close();
  if (!cuda_) return;
  for (std::optional<cuda::Stream>* stream : {&cuda_->own_stream, &cuda_->draining}) {
    if (*stream) OwnStreams::instance().give_back(tensor_.device().index(), *std::exchange(*stream, std::nullopt));
  }
}

void PreparedTransfer::open(const std::string& address_of_peer) {
  gpu_comm::TransferAddress address;
  if (address_of_peer.size() != sizeof(address)) throw_value_error("prepare: the peer's address has another length");
  std::memcpy(&address, address_of_peer.data(), sizeof(address));
  const c10::DeviceGuard on_device(tensor_.device());
  const cuda::RelaxedCapture beside_captures;  // the current stream may be captured
  const cuda::StreamView stream = OwnStreams::instance().for_memory(tensor_.device().index());
  const std::lock_guard lock(mutex_);
  cuda_->transfer = value_of(gpu_comm::PartitionedTransfer::open(side().device_group(), cuda_->end, address, stream));
}

void PreparedTransfer::open_through_host(uint32_t first_tag) {
  const c10::DeviceGuard on_device(tensor_.device());
  const cuda::RelaxedCapture beside_captures;
  OwnStreams& streams = OwnStreams::instance();
  const int device = tensor_.device().index();
  const std::lock_guard lock(mutex_);
  cuda_->draining = streams.take(device);
  cuda_->transfer = value_of(gpu_comm::PartitionedTransfer::open_through_host(
      side().device_group(), cuda_->end, AxonBackend::reserved(first_tag), *cuda_->draining,
      streams.for_memory(device)));
}

uint32_t PreparedTransfer::most_host_partitions() noexcept {
  return kernels::kMostHostPartitions;
}

void PreparedTransfer::close() noexcept {
  try {
    const c10::DeviceGuard on_device(tensor_.device());
    const cuda::RelaxedCapture beside_captures;
    const std::lock_guard lock(mutex_);
    if (!cuda_ || !cuda_->transfer) return;
    auto transfer = std::exchange(cuda_->transfer, std::nullopt);
    if (backend_->has_cuda_side(cuda_side_)) cuda_->ends = value_of(transfer->close());
  } catch (const std::exception&) {
    log::info("CUDA has failed or the process is exiting: a prepared request is not closed");
  }
}

bool PreparedTransfer::has_ended() const {
  const cuda::RelaxedCapture beside_captures;
  const std::lock_guard lock(mutex_);
  return !cuda_->transfer &&
         std::ranges::all_of(cuda_->ends, [](const cuda::Event& end) { return end.view().has_passed(); });
}

void PreparedTransfer::check_open() const {
  if (!cuda_->transfer) refuse("the request is closed", "to prepare another one");
}

// Throws if the group has given up its GPU side since, and with it what the kernels use.
CudaSide& PreparedTransfer::side() const {
  CudaSide& side = backend_->cuda_side(tensor_.device());
  if (side.serial() != cuda_side_) {
    refuse("its group was suspended or reconfigured after prepare()", "to prepare it again");
  }
  return side;
}

void PreparedTransfer::refuse(const std::string& what, const std::string& allowed) const {
  throw_value_error(std::string("prepared ") + (wish_.is_sender ? "send to" : "recv from") + " rank " +
                    std::to_string(wish_.peer) + ", tag " + std::to_string(wish_.tag) + ": " + what +
                    "; allowed: " + allowed);
}

void PreparedTransfer::note(Step step, uint32_t first, uint32_t end) {
  if (step == Step::kStart) {
    if (is_started_) refuse("start() was called before wait()", "once the last start has been waited for");
    is_started_ = true;
    is_ready_.assign(is_ready_.size(), false);
    return;
  }
  if (!is_started_) refuse("a partition was used before start()", "start() first");
  if (step == Step::kWait) is_started_ = false;
  if (step != Step::kReady) return;
  for (uint32_t partition = first; partition < end; ++partition) {
    if (is_ready_[partition]) refuse("ready(" + std::to_string(partition) + ") was called twice", "once per start()");
  }
  std::fill(is_ready_.begin() + first, is_ready_.begin() + end, true);
}

void PreparedTransfer::enqueue(Step step, uint32_t first, uint32_t end) {
  const c10::DeviceGuard on_device(tensor_.device());
  CudaSide& side = this->side();
  const c10::Stream current = side.begin_step();
  cuda::StreamView stream = view_of(current);
  const std::lock_guard lock(mutex_);
  check_open();
  const bool captured = is_capturing(current);
  if (captured) host_takes_all_steps_ = false;
  if (host_takes_all_steps_) note(step, first, end);
  if (captured && step == Step::kStart && cuda_->draining) side.note_captured(current);
  if (step == Step::kStart && cuda_->own_stream) {
    cuda_->order(stream, *cuda_->own_stream);
    stream = *cuda_->own_stream;
  }
  const bool ends_whole = step == Step::kWait && wish_.num_partitions == 0 && cuda_->started_on;
  if (ends_whole && stream.get() != cuda_->started_on->get()) cuda_->order(*cuda_->started_on, stream);
  check(cuda_->transfer->enqueue(static_cast<gpu_comm::PartitionedTransfer::Step>(step), stream, first, end));
  if (step == Step::kStart) cuda_->started_on = stream;
}

void PreparedTransfer::start() {
  enqueue(Step::kStart);
}

void PreparedTransfer::ready(uint32_t first, uint32_t end) {
  if (!wish_.is_sender) refuse("ready() was called by the receiver", "by the sender");
  enqueue(Step::kReady, first, end);
}

void PreparedTransfer::arrived(uint32_t first, uint32_t end) {
  enqueue(Step::kArrived, first, end);
}

void PreparedTransfer::wait() {
  enqueue(Step::kWait);
}

uintptr_t PreparedTransfer::add_to(uintptr_t graph, const std::vector<uintptr_t>& dependencies, const std::string& step,
                                   uint32_t first, uint32_t end) {
  static constexpr std::array<std::string_view, 4> kSteps{"start", "ready", "arrived", "wait"};
  const auto* const found = std::ranges::find(kSteps, step);
  if (found == kSteps.end()) {
    throw_value_error("add_to_graph: argument 'step' is '" + step + "'; allowed: start, ready, arrived, wait");
  }
  const std::lock_guard lock(mutex_);
  check_open();
  std::vector<cudaGraphNode_t> nodes;
  for (const uintptr_t node : dependencies) nodes.push_back(reinterpret_cast<cudaGraphNode_t>(node));
  const c10::DeviceGuard on_device(tensor_.device());
  cudaGraphNode_t const node = value_of(
      cuda_->transfer->add_to(reinterpret_cast<cudaGraph_t>(graph), nodes,
                              static_cast<gpu_comm::PartitionedTransfer::Step>(found - kSteps.begin()), first, end));
  host_takes_all_steps_ = false;
  return reinterpret_cast<uintptr_t>(node);
}

uintptr_t PreparedTransfer::device_handle() {
  if (wish_.num_partitions == 0) refuse("kernels can only send partitions", "a request with partitions, at least 1");
  const std::lock_guard lock(mutex_);
  check_open();
  host_takes_all_steps_ = false;
  return reinterpret_cast<uintptr_t>(cuda_->transfer->device_handle());
}

}  // namespace axon::c10d_backend
