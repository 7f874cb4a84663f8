#include "c10d/prepared_transfer.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/log.hpp"
#include "c10d/cuda/conversions.hpp"
#include "cuda/capture.hpp"
#include "gpu_comm/partitioned_transfer.hpp"

namespace axon::c10d_backend {

namespace {

bool is_captured(c10::Stream stream) {
  return value_of(cuda::is_capturing(view_of(stream)));
}

}  // namespace

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

c10::Stream CudaSide::take_stream() {
  const std::lock_guard lock(mutex_);
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(device_, /*isHighPriority=*/true);
  streams_.note_use(stream);
  return stream;
}

size_t PreparedTransfer::record_bytes(size_t tensor_bytes, uint32_t num_partitions) noexcept {
  return gpu_comm::record_bytes({.num_bytes = tensor_bytes, .num_partitions = num_partitions});
}

PreparedTransfer::PreparedTransfer(c10::intrusive_ptr<AxonBackend> backend, at::Tensor tensor, at::Tensor record,
                                   const Wish& wish)
    : backend_(std::move(backend)),
      tensor_(std::move(tensor)),
      record_(std::move(record)),
      wish_(wish),
      round_(backend_->cuda_side(tensor_.device()).round()),
      last_(c10::Stream::DEFAULT, tensor_.device()),
      is_ready_(std::max(wish.num_partitions, 1u)) {
  const c10::DeviceGuard on_device(tensor_.device());
  const c10::Stream stream = side().begin_step();
  if (is_captured(stream)) {
    throw_value_error("prepare: the current stream is captured into a CUDA graph; allowed: to prepare before that");
  }
  end_ = std::make_unique<gpu_comm::TransferEnd>(
      gpu_comm::TransferEnd{.is_sender = wish.is_sender,
                            .peer = wish.peer,
                            .tag = wish.tag,
                            .dtype = to_data_type(tensor_.scalar_type()),
                            .tensor = static_cast<std::byte*>(tensor_.mutable_data_ptr()),
                            .num_bytes = tensor_.nbytes(),
                            .num_partitions = wish.num_partitions,
                            .record = static_cast<std::byte*>(record_.mutable_data_ptr()),
                            .timeout = wish.timeout});
  record_.zero_();
  c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeStream(stream);
  if (gpu_comm::waits_for_credit_at_start(*end_)) own_stream_ = side().take_stream();
  const Result<gpu_comm::TransferAddress> address = gpu_comm::address_of(side().device_group(), *end_);
  if (address.ok()) {
    address_.assign(reinterpret_cast<const char*>(&address.value()), sizeof(gpu_comm::TransferAddress));
  } else {
    log::info(address.status().message());
  }
}

PreparedTransfer::~PreparedTransfer() {
  close();
}

void PreparedTransfer::close() noexcept {
  try {
    const c10::DeviceGuard on_device(tensor_.device());
    const cuda::RelaxedCapture beside_captures;
    if (transfer_ && backend_->has_cuda_side(round_)) (void)transfer_->close();
  } catch (const std::exception&) {
    log::info("CUDA has failed or the process is exiting: a prepared request is not closed");
  }
  transfer_.reset();
}

void PreparedTransfer::open(const std::string& address_of_peer) {
  gpu_comm::TransferAddress address;
  if (address_of_peer.size() != sizeof(address)) throw_value_error("prepare: the peer's address has another length");
  std::memcpy(&address, address_of_peer.data(), sizeof(address));
  const c10::DeviceGuard on_device(tensor_.device());
  const cuda::RelaxedCapture beside_captures;  // the current stream may be captured
  const cuda::Stream stream = value_of(cuda::Stream::create());
  transfer_ = std::make_unique<gpu_comm::PartitionedTransfer>(
      value_of(gpu_comm::PartitionedTransfer::open(side().device_group(), *end_, address, stream)));
}

// Throws if the group has given up its GPU side since, and with it what the kernels use.
CudaSide& PreparedTransfer::side() const {
  CudaSide& side = backend_->cuda_side(tensor_.device());
  if (side.round() != round_) refuse("its group was suspended after prepare()", "to prepare it again after resume()");
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
    is_ready_[partition] = true;
  }
}

void PreparedTransfer::enqueue(Step step, uint32_t first, uint32_t end) {
  const c10::DeviceGuard on_device(tensor_.device());
  c10::Stream stream = side().begin_step();
  if (is_seen_whole_ && is_captured(stream)) is_seen_whole_ = false;
  if (is_seen_whole_) note(step, first, end);
  if (step == Step::kStart && own_stream_) {
    side().order(stream, *own_stream_);
    stream = *own_stream_;
  }
  const bool is_end_of_whole = step == Step::kWait && wish_.num_partitions == 0;
  if (is_end_of_whole && stream != last_) side().order(last_, stream);
  const Status enqueued =
      transfer_->enqueue(static_cast<gpu_comm::PartitionedTransfer::Step>(step), view_of(stream), first, end);
  if (!enqueued.ok()) throw_failure(enqueued);
  if (step == Step::kStart) last_ = stream;
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
  is_seen_whole_ = false;
  std::vector<cudaGraphNode_t> nodes;
  for (const uintptr_t node : dependencies) nodes.push_back(reinterpret_cast<cudaGraphNode_t>(node));
  const c10::DeviceGuard on_device(tensor_.device());
  return reinterpret_cast<uintptr_t>(value_of(
      transfer_->add_to(reinterpret_cast<cudaGraph_t>(graph), nodes,
                        static_cast<gpu_comm::PartitionedTransfer::Step>(found - kSteps.begin()), first, end)));
}

uintptr_t PreparedTransfer::device_handle() {
  if (wish_.num_partitions == 0) refuse("kernels can only send partitions", "a request with partitions, at least 1");
  is_seen_whole_ = false;
  return reinterpret_cast<uintptr_t>(transfer_->device_handle());
}

}  // namespace axon::c10d_backend
