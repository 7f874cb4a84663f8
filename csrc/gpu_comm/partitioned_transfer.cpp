#include "gpu_comm/partitioned_transfer.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/capture.hpp"

namespace axon::gpu_comm {

static uint32_t count_partitions(const TransferEnd& end) noexcept {
  return std::max(end.num_partitions, 1u);
}

static bool is_whole(const TransferEnd& end) noexcept {
  return end.num_partitions == 0;
}

static uint64_t ll_bytes_of(const TransferEnd& end) noexcept {
  return is_whole(end) && end.num_bytes <= kernels::kMostLlBytes ? end.num_bytes : 0;
}

size_t record_bytes(const TransferEnd& end) noexcept {
  return kernels::TransferRecord::of(count_partitions(end), ll_bytes_of(end)).num_bytes;
}

bool waits_for_credit_at_start(const TransferEnd& end) noexcept {
  return end.is_sender && is_whole(end) && ll_bytes_of(end) == 0;
}

Result<TransferAddress> address_of(DeviceGroup& group, const TransferEnd& end) {
  const TransferAddress address{.tensor = group.locate(end.tensor, end.num_bytes),
                                .record = group.locate(end.record, record_bytes(end)),
                                .tensor_address = reinterpret_cast<uint64_t>(end.tensor),
                                .record_address = reinterpret_cast<uint64_t>(end.record)};
  if (address.tensor.registration != 0 && address.record.registration != 0) return address;
  return Status(ErrorCode::kInvalidArgument, "a prepared transfer with rank " + std::to_string(end.peer) +
                                                 " goes through the host: other GPUs cannot map its tensor");
}

static kernels::TransferEnds ends_of(const TransferEnd& end) noexcept {
  return {.is_sender = end.is_sender,
          .num_partitions = count_partitions(end),
          .num_bytes = end.num_bytes,
          .ll_bytes = ll_bytes_of(end),
          .tensor = end.tensor,
          .record = end.record,
          .tag = end.tag,
          .call = {.operation = static_cast<uint64_t>(cuda::DeviceOperation::kPreparedTransfer),
                   .dtype = static_cast<uint64_t>(end.dtype),
                   .reduction = static_cast<uint64_t>(Reduction::kNone),
                   .root = cuda::kNoRoot,
                   .num_bytes = end.num_bytes}};
}

Result<PartitionedTransfer> PartitionedTransfer::open(DeviceGroup& group, const TransferEnd& end,
                                                      const TransferAddress& of_peer, cuda::StreamView stream) {
  Result<std::byte*> tensor = group.find(end.peer, of_peer.tensor, end.num_bytes, of_peer.tensor_address);
  if (!tensor.ok()) return std::move(tensor.status());
  Result<std::byte*> record = group.find(end.peer, of_peer.record, record_bytes(end), of_peer.record_address);
  if (!record.ok()) return std::move(record.status());
  kernels::TransferEnds ends = ends_of(end);
  ends.peer_tensor = tensor.value();
  ends.peer_record = record.value();
  AXON_TRY(group.write_transfer(ends, end.peer, end.timeout, stream));
  return PartitionedTransfer(group, end, group.hold_ledger());
}

Result<PartitionedTransfer> PartitionedTransfer::open_through_host(DeviceGroup& group, const TransferEnd& end,
                                                                   uint32_t first_tag, cuda::StreamView draining,
                                                                   cuda::StreamView stream) {
  Result<std::unique_ptr<HostTransfer>> host = HostTransfer::open(group, end, first_tag, draining);
  if (!host.ok()) return std::move(host.status());
  const cuda::DeviceGuard guard(group.device());
  kernels::TransferEnds ends = ends_of(end);
  const kernels::TransferWaits waits = host.value()->complete(ends);
  AXON_TRY(kernels::write_transfer(waits, ends, stream));
  PartitionedTransfer transfer(group, end, group.hold_ledger());
  transfer.host_ = std::move(host).value();
  return transfer;
}

// A whole tensor is sent by one kernel at the sender. If it is small, one kernel also receives it.
std::optional<kernels::TransferStep> PartitionedTransfer::step_of(Step step) const noexcept {
  using enum kernels::TransferStep;
  const bool is_ll = ll_bytes_of(end_) != 0;
  switch (step) {
    case Step::kStart:
      if (!is_whole(end_)) return kStart;
      if (end_.is_sender) return is_ll ? kSendLl : kSend;
      return is_ll ? std::nullopt : std::optional(kStart);
    case Step::kReady:
      return kReady;
    case Step::kArrived:
      return kArrived;
    case Step::kWait:
      if (is_whole(end_) && end_.is_sender) return std::nullopt;
      return is_ll ? kWaitLl : kWait;
  }
  return std::nullopt;
}

kernels::TransferCall PartitionedTransfer::call_of(kernels::TransferStep step, uint32_t first,
                                                   uint32_t end) const noexcept {
  return {.transfer = device_handle(),
          .step = step,
          .first = first,
          .end = end,
          .partition_bytes = end_.num_bytes / count_partitions(end_)};
}

Status PartitionedTransfer::enqueue(Step step, cuda::StreamView stream, uint32_t first, uint32_t end) {
  const std::optional<kernels::TransferStep> taken = step_of(step);
  if (!taken) return Status();
  const auto is_stream = [&](cuda::StreamView other) { return other.get() == stream.get(); };
  if (std::ranges::none_of(streams_, is_stream)) streams_.push_back(stream);
  return group_->enqueue_held(stream, [&] {
    if (host_ != nullptr && step == Step::kStart) return host_->start(stream);
    const Status launched = launch(call_of(*taken, first, end), stream);
    return launched.ok() && host_ != nullptr && step == Step::kWait ? host_->end_start(stream) : launched.clone();
  });
}

Result<cudaGraphNode_t> PartitionedTransfer::add_to(cudaGraph_t graph, std::span<const cudaGraphNode_t> dependencies,
                                                    Step step, uint32_t first, uint32_t end) {
  if (host_ != nullptr) {
    return Status(
        ErrorCode::kInvalidArgument,
        "add_to_graph: the transfer passes through host memory; allowed: to capture its calls into the graph");
  }
  if (is_whole(end_)) {
    return Status(ErrorCode::kInvalidArgument,
                  "add_to_graph: the tensor is sent as a whole; allowed: a request with partitions, or a capture");
  }
  kernels::TransferKernel kernel = kernel_of(call_of(*step_of(step), first, end));
  void* arguments[] = {&kernel.transfer, &kernel.first, &kernel.second};
  return cuda::add_kernel(graph, dependencies, kernel.kernel, kernel.shape, arguments);
}

Result<std::vector<cuda::Event>> PartitionedTransfer::close() {
  std::vector<cuda::Event> ends;
  if (host_ != nullptr) {
    AXON_TRY(host_->close(streams_));
    streams_.push_back(host_->draining());
  }
  for (const cuda::StreamView stream : std::exchange(streams_, {})) {
    Result<cuda::Event> end = cuda::Event::create_untimed();
    if (!end.ok()) return std::move(end.status());
    AXON_TRY(group_->enqueue(stream, [&] { return stream.record(end.value()); }));
    ends.push_back(std::move(end).value());
  }
  hold_.reset();
  return ends;
}

axon::PreparedTransfer* PartitionedTransfer::device_handle() const noexcept {
  return reinterpret_cast<axon::PreparedTransfer*>(end_.record);
}

}  // namespace axon::gpu_comm
