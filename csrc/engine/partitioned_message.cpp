#include "engine/partitioned_message.hpp"

#include <utility>

#include "engine/engine.hpp"

namespace axon::engine {

Result<std::shared_ptr<PartitionedMessage>> PartitionedMessage::open(Communicator& communicator,
                                                                     Specification specification, Memory memory) {
  Engine& engine = communicator.engine();
  if (engine.is_forked()) return Engine::forked();
  std::shared_ptr<PartitionedMessage> message(
      new PartitionedMessage(communicator.group(), std::move(specification), std::move(memory)));
  engine.exclusively([&] { engine.replays().add(message); });
  return message;
}

PartitionedMessage::PartitionedMessage(std::shared_ptr<Group> group, Specification specification, Memory memory)
    : group_(std::move(group)),
      specification_(std::move(specification)),
      memory_(std::move(memory)),
      runs_(specification_.num_partitions) {}

PartitionedMessage::~PartitionedMessage() = default;

Status PartitionedMessage::start() {
  if (group_->engine().is_forked()) return Engine::forked();
  num_started_.fetch_add(1);
  submit_elsewhere();  // there may be thousands of receives to post
  return Status();
}

// Any thread, also of CUDA, so another one has to go on.
void PartitionedMessage::release() noexcept {
  const Engine& engine = group_->engine();
  if (engine.is_forked() || engine.has_ended()) return;
  is_released_.store(true);
  submit_elsewhere();
}

void PartitionedMessage::give_up() noexcept {
  end_device();
  release();
}

void PartitionedMessage::trigger() noexcept {
  num_started_.fetch_add(1);
  advance();
}

// The object is in one queue at a time, and in it keeps itself.
bool PartitionedMessage::keep_submitted() noexcept {
  if (is_submitted_.exchange(true)) return false;
  submitted_ = shared_from_this();
  return true;
}

void PartitionedMessage::submit() noexcept {
  if (keep_submitted()) group_->engine().submit_after_completion(*this);
}

void PartitionedMessage::submit_elsewhere() noexcept {
  if (keep_submitted()) group_->engine().submit_to_drivers(*this);
}

void PartitionedMessage::begin() noexcept {
  const std::shared_ptr<PartitionedMessage> self = std::move(submitted_);
  is_submitted_.store(false);
  advance();
}

// Looks at everything that may have changed.
void PartitionedMessage::advance() noexcept {
  const std::shared_ptr<PartitionedMessage> self = shared_from_this();
  const bool has_ended = has_failed_.load() || (is_released_.load() && !group_->failure().ok());
  if (has_ended) {
    unlink();
    drop(std::exchange(num_unposted_, 0));
  }
  if (knows_failure_.load() && !std::exchange(has_told_group_, true)) tell_group();
  if (has_run_.exchange(false)) {
    group_->engine().end_device_operation();
    self_.reset();
  }
  const bool is_last = has_ended || num_begun_ == num_started_.load();
  if (self_ == nullptr && !is_last) return begin_start();
  if (self_ == nullptr && is_released_.load()) retire();
}

// A launch whose trigger has not been read yet still counts, and may begin a start.
void PartitionedMessage::retire() noexcept {
  Replays& replays = group_->engine().replays();
  replays.read();
  if (self_ == nullptr) replays.forget(*this);
}

void PartitionedMessage::begin_start() noexcept {
  self_ = shared_from_this();
  ++num_begun_;
  former_ = std::exchange(count_, next(count_));
  num_left_.store(num_partitions());
  num_unposted_ = num_partitions();
  group_->engine().begin_device_operation();
  await_device();
}

// A sender waits for any partition, and a receiver until the memory has been drained.
void PartitionedMessage::await_device() noexcept {
  if (specification_.is_sender) return group_->engine().wait_for_any_flag(*this, memory_.flags, count_);
  set_flags({memory_.turn, 1}, former_);
  if (is_flag_set()) return on_flag_set();
  group_->engine().wait_for_any_flag(*this, {memory_.turn, 1}, former_);
}

// May be called because the transport is closed. Then replays have failed it before.
void PartitionedMessage::on_flag_set() noexcept {
  if (has_failed_.load()) return advance();
  if (specification_.is_sender) return send_ready();
  for (size_t partition = 0; partition < num_partitions(); ++partition) begin_partition(partition);
}

// The mark of a closed request is read first: what was ready before it is still sent.
void PartitionedMessage::send_ready() noexcept {
  const bool is_closed = memory_.flags[num_partitions()].load(std::memory_order_acquire) == count_;
  for (size_t partition = 0; partition < num_partitions() && !has_failed_.load(); ++partition) {
    std::atomic<uint32_t>& flag = memory_.flags[partition];
    if (flag.load(std::memory_order_acquire) != count_) continue;
    flag.store(0, std::memory_order_relaxed);  // the device writes it again only when it is this memory's turn
    begin_partition(partition);
  }
  if (has_failed_.load() || is_closed) {
    drop(std::exchange(num_unposted_, 0));
    advance();
  } else if (num_unposted_ != 0) {
    await_device();
  }
}

void PartitionedMessage::begin_partition(size_t partition) noexcept {
  --num_unposted_;
  Run& run = runs_[partition].emplace(*this, partition);
  std::byte* const data = memory_.data + partition * specification_.partition_bytes;
  run.arguments.kind = transport::OperationKind::kPointToPoint;
  run.arguments.dtype = specification_.dtype;
  run.num_elements = specification_.partition_bytes / size_of(specification_.dtype);
  run.peer = specification_.peer;
  run.tag = specification_.first_tag + static_cast<uint32_t>(partition);
  run.timeout = specification_.timeout;
  if (specification_.is_sender) {
    run.direction = Direction::kSend;
    run.input = {data, specification_.partition_bytes};
    run.arguments.inputs = {&run.input, 1};
  } else {
    run.direction = Direction::kReceive;
    run.output = {data, specification_.partition_bytes};
    run.arguments.outputs = {&run.output, 1};
  }
  run.join(*group_);
  group_->begin(run);
}

// These partitions of the present start have no messages, and get none.
void PartitionedMessage::drop(size_t num_partitions) noexcept {
  if (num_partitions != 0 && num_left_.fetch_sub(num_partitions) == num_partitions) has_run_.store(true);
}

void PartitionedMessage::on_finished(const Operation& operation, size_t partition) noexcept {
  if (!operation.status().ok()) {
    note_failure(operation, partition);
  } else if (!specification_.is_sender) {
    memory_.flags[partition].store(count_, std::memory_order_release);
  }
}

// The last access of a message. Without a failure the sender's memory is free, and its device need not wait until the
// next start begins here.
void PartitionedMessage::on_released() noexcept {
  const std::shared_ptr<PartitionedMessage> self = shared_from_this();
  if (num_left_.fetch_sub(1) != 1) return;
  if (specification_.is_sender && !has_failed_.load()) memory_.turn->store(next(count_), std::memory_order_release);
  has_run_.store(true);
  submit();
}

void PartitionedMessage::note_failure(const Operation& operation, size_t partition) noexcept {
  if (has_failed_.exchange(true)) return;
  const std::string call = group_->signed_text(operation.describe() + ": ");
  const std::string& text = operation.status().message();
  failure_ = Status(operation.status().code(), specification_.name + ", partition " + std::to_string(partition) + ": " +
                                                   (text.starts_with(call) ? text.substr(call.size()) : text));
  memory_.has_failed->store(1, std::memory_order_release);
  knows_failure_.store(true);
  submit();
}

// The outcome of a request that was closed before its start had ended concerns no call.
void PartitionedMessage::tell_group() noexcept {
  if (group_->failure().ok() && !is_released_.load()) group_->fail(failure_.clone());
}

// Its group has ended.
void PartitionedMessage::fail() noexcept {
  end_device();
  advance();
}

void PartitionedMessage::end_device() noexcept {
  has_failed_.store(true);
  memory_.has_failed->store(1, std::memory_order_release);
}

}  // namespace axon::engine
