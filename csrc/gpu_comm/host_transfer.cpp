#include "gpu_comm/host_transfer.hpp"

#include <new>
#include <string>
#include <utility>

#include "cuda/capture.hpp"
#include "gpu_comm/partitioned_transfer.hpp"
#include "gpu_comm/relay/direct_plan.hpp"
#include "gpu_comm/relay/plan.hpp"
#include "gpu_comm/relay/trigger_ring.hpp"

namespace axon::gpu_comm {

static constexpr size_t kLine = 128;

static size_t rounded_up(size_t offset) noexcept {
  return (offset + kLine - 1) / kLine * kLine;
}

static std::string name_of(const TransferEnd& end) {
  return std::string("prepared ") + (end.is_sender ? "send to" : "recv from") + " rank " + std::to_string(end.peer) +
         ", tag " + std::to_string(end.tag) + " (" + axon::name_of(end.dtype) + ", " +
         std::to_string(end.num_bytes / size_of(end.dtype)) + " elements)";
}

// The turn has a line of its own. The flags follow it, one of them more than partitions.
static size_t offset_of_data(const TransferEnd& end) noexcept {
  return kLine + rounded_up((end.num_partitions + size_t{1}) * sizeof(uint32_t));
}

static uint32_t* word_of(std::atomic<uint32_t>* word) noexcept {
  return reinterpret_cast<uint32_t*>(word);
}

Result<std::unique_ptr<HostTransfer>> HostTransfer::open(DeviceGroup& group, const TransferEnd& end, uint32_t first_tag,
                                                         cuda::StreamView draining) {
  if (end.num_partitions == 0 || end.num_partitions > kernels::kMostHostPartitions) {
    return Status(ErrorCode::kInvalidArgument,
                  "prepare: argument 'partitions' is " + std::to_string(end.num_partitions) + "; allowed: 1 to " +
                      std::to_string(kernels::kMostHostPartitions) + " if the transfer passes through host memory");
  }
  const cuda::DeviceGuard guard(group.device());
  Result<std::shared_ptr<PinnedBlock>> control = PinnedBlock::take(sizeof(Control));
  if (!control.ok()) return std::move(control.status());
  Result<std::shared_ptr<PinnedBlock>> data = PinnedBlock::take(offset_of_data(end) + kLine + end.num_bytes);
  if (!data.ok()) return std::move(data.status());
  Result<cuda::Event> event = cuda::Event::create_untimed();
  if (!event.ok()) return std::move(event.status());
  Result<cuda::Event> drained = cuda::Event::create_untimed();
  if (!drained.ok()) return std::move(drained.status());
  std::unique_ptr<HostTransfer> transfer(
      new HostTransfer(group, end, {.control = std::move(control).value(), .data = std::move(data).value()}, draining,
                       std::move(event).value(), std::move(drained).value()));
  AXON_TRY(transfer->open_message(end, first_tag));
  group.watch(transfer->watched_);
  return transfer;
}

// Memory of the pool holds what its former owner has left there.
HostTransfer::HostTransfer(DeviceGroup& group, const TransferEnd& end, Memory memory, cuda::StreamView draining,
                           cuda::Event event, cuda::Event drained)
    : group_(group),
      is_sender_(end.is_sender),
      longest_wait_(longest_wait_of(end.timeout)),
      record_(end.record),
      memory_(std::make_shared<const Memory>(std::move(memory))),
      words_(kernels::drain_words_of(end.record, end.num_partitions)),
      draining_(draining),
      event_(std::move(event)),
      drained_(std::move(drained)),
      watched_(std::make_shared<WatchedTransfer>()) {
  new (memory_->control->data()) Control{};
  new (memory_->data->data()) std::atomic<uint32_t>(is_sender_ ? 1 : 0);
  for (uint32_t partition = 0; partition <= end.num_partitions; ++partition) {
    new (flags() + partition) std::atomic<uint32_t>(0);
  }
  partitions_ = {.data = memory_->data->data() + offset_of_data(end) + misalignment_of(end.tensor),
                 .flags = word_of(flags()),
                 .turn = word_of(turn()),
                 .num_partitions = end.num_partitions,
                 .partition_bytes = end.num_bytes / end.num_partitions};
  watched_->memory = memory_->control;
  watched_->control = &control().team;
  watched_->peer = end.peer;
}

std::atomic<uint32_t>* HostTransfer::flags() const noexcept {
  return reinterpret_cast<std::atomic<uint32_t>*>(memory_->data->data() + kLine);
}

Status HostTransfer::open_message(const TransferEnd& end, uint32_t first_tag) {
  engine::Communicator& communicator = group_.communicator();
  Result<kernels::Trigger> trigger = next_trigger(communicator.engine());
  if (!trigger.ok()) return std::move(trigger.status());
  trigger_ = trigger.value();
  trigger_.has_failed = &control().failure.has_failed;
  auto* const has_failed = reinterpret_cast<std::atomic<uint32_t>*>(&control().failure.has_failed);
  Result<std::shared_ptr<engine::PartitionedMessage>> message =
      engine::PartitionedMessage::open(communicator,
                                       {.trigger_id = trigger_.id,
                                        .is_sender = is_sender_,
                                        .peer = end.peer,
                                        .first_tag = first_tag,
                                        .dtype = end.dtype,
                                        .partition_bytes = partitions_.partition_bytes,
                                        .num_partitions = end.num_partitions,
                                        .timeout = end.timeout,
                                        .name = name_of(end)},
                                       {.data = partitions_.data,
                                        .flags = {flags(), end.num_partitions + size_t{1}},
                                        .turn = turn(),
                                        .has_failed = has_failed,
                                        .owner = std::const_pointer_cast<Memory>(memory_)});
  if (!message.ok()) return std::move(message.status());
  part_ = std::make_shared<EnginePart>(memory_, std::move(message).value());
  return Status();
}

// The group has given up its GPU side, and with that ended the waits of kernels that still run, or CUDA has failed.
HostTransfer::~HostTransfer() {
  if (part_ == nullptr) return;
  watched_->state.store(WatchedTransfer::State::kClosed, std::memory_order_relaxed);
  (void)note_last_use();  // fails if CUDA has failed
  part_->message->give_up();
}

kernels::TransferWaits HostTransfer::complete(kernels::TransferEnds& ends) const noexcept {
  ends.peer_record = ends.record;
  ends.peer = 0;  // of the bits in TeamControl::gone, none of which is ever set
  if (is_sender_) {
    ends.peer_tensor = partitions_.data;
    ends.host_arrived = partitions_.flags;
    ends.host_credit = partitions_.turn;
  }
  return {
      .fault = &words_->fault, .control = &control().team, .timeout_ns = static_cast<uint64_t>(longest_wait_.count())};
}

Status HostTransfer::start(cuda::StreamView stream) {
  const Result<bool> captured = cuda::is_capturing(stream);
  if (!captured.ok()) return captured.status().clone();
  AXON_TRY(kernels::launch_host_start(handle(), stream));
  if (captured.value()) AXON_TRY(send_trigger(stream));
  if (!is_sender_) AXON_TRY(drain(stream));
  if (captured.value()) {
    is_captured_ = true;
    return cuda::keep_with_graph(stream, part_);
  }
  is_started_ = true;
  return part_->message->start();
}

Status HostTransfer::send_trigger(cuda::StreamView stream) {
  const kernels::SlotCall call{.has_expired = word_of(&control().has_expired),
                               .longest_wait_ns = static_cast<uint64_t>(longest_wait_.count()),
                               .trigger = trigger_};
  return kernels::move_slot(call, stream);
}

Status HostTransfer::drain(cuda::StreamView stream) {
  AXON_TRY(stream.record(event_));
  AXON_TRY(draining_.wait(event_));
  AXON_TRY(kernels::launch_drain(handle(), partitions_, words_, draining_));
  return kernels::launch_await_drain(handle(), words_, stream);
}

Status HostTransfer::end_start(cuda::StreamView stream) {
  const Result<uint64_t> capture = cuda::capture_of(stream);
  if (!capture.ok()) return capture.status().clone();
  if (capture.value() == 0) is_started_ = false;
  if (is_sender_) return Status();
  const Result<uint64_t> of_drain = cuda::capture_of(draining_);
  if (!of_drain.ok()) return of_drain.status().clone();
  if (of_drain.value() != capture.value()) return Status();  // an eager start: the wait for its partitions suffices
  const cuda::EventView end = capture.value() == 0 ? drained_.view() : event_.view();
  AXON_TRY(draining_.record(end));
  return stream.wait(end);
}

// Without a report to the group, which goes on. The start before may still be drained, and its results used.
Status HostTransfer::abandon() noexcept {
  if (is_sender_ || !is_started_) return Status();
  AXON_TRY(drained_.view().synchronize());
  watched_->state.store(WatchedTransfer::State::kAbandoned, std::memory_order_relaxed);
  std::atomic_ref(control().team.abort).store(1, std::memory_order_relaxed);
  return Status();
}

Status HostTransfer::note_last_use() {
  AXON_TRY(draining_.record(memory_->control->last_use()));
  return draining_.record(memory_->data->last_use());
}

Status HostTransfer::close(std::span<const cuda::StreamView> streams) {
  AXON_TRY(abandon());
  for (const cuda::StreamView stream : streams) {
    AXON_TRY(stream.record(event_));
    AXON_TRY(draining_.wait(event_));
  }
  // Starts of queued launches go on.
  if (is_started_ || !is_captured_) AXON_TRY(kernels::launch_close(handle(), partitions_, draining_));
  AXON_TRY(note_last_use());
  auto open = WatchedTransfer::State::kOpen;
  watched_->state.compare_exchange_strong(open, WatchedTransfer::State::kClosed, std::memory_order_relaxed);
  part_.reset();
  return Status();
}

}  // namespace axon::gpu_comm
