#include "engine/segmented_exchange.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "collectives/hierarchy.hpp"
#include "collectives/levels.hpp"
#include "engine/engine.hpp"
#include "engine/operation.hpp"

namespace axon::engine {

// Up to some 2,000 ranks, no algorithm uses more slots of the exchange for one segment. The numbers wrap, but segments
// that share slots are 1,024 segments apart.
static constexpr uint32_t kExchangeSlotsPerSegment = uint32_t{1} << 21;

const std::atomic<uint32_t>& SegmentedExchange::Filled::turn() const noexcept {
  return segments_.device_->turn(segment_ % segments_.device_->num_slots());
}

bool SegmentedExchange::Filled::await_ready() const noexcept {
  if (segments_.device_ == nullptr || !segments_.exchange_.failure().ok()) return true;
  return turn().load(std::memory_order_acquire) == DeviceSegments::kEnginesTurn;
}

void SegmentedExchange::Filled::await_suspend(std::coroutine_handle<> waiter) noexcept {
  waiter_ = waiter;
  segments_.awaiting_.push_back(*this);
  segments_.engine_.wait_for_flag(*this, turn(), DeviceSegments::kEnginesTurn);
}

void SegmentedExchange::Filled::on_flag_set() noexcept {
  ListNode<Filled, InSegments>::unlink();
  waiter_.resume();
}

void SegmentedExchange::Filled::stop_waiting() noexcept {
  FlagWaiter::unlink();
  waiter_.resume();
}

// The last one that continues may end this object.
void SegmentedExchange::stop_waiting() noexcept {
  std::array<Filled*, DeviceSegments::kMostSlots> stopped{};
  size_t num_stopped = 0;
  while (Filled* filled = awaiting_.pop_front()) stopped[num_stopped++] = filled;
  for (size_t i = 0; i < num_stopped; ++i) stopped[i]->stop_waiting();
}

// After a failure, the device would wait for this slot before it fills those of other lanes.
Status SegmentedExchange::end_segment(size_t segment, Status status) noexcept {
  if (!status.ok()) {
    stop_waiting();
  } else if (device_ != nullptr) {
    device_->give_back(segment);
  }
  return status;
}

template <typename Call>
Task<Status> SegmentedExchange::run_lane(const Call& call, size_t segment) {
  for (; segment < call.num_segments; segment += num_lanes()) {
    AXON_CO_TRY(co_await Filled(*this, segment));
    AXON_CO_TRY(end_segment(segment, co_await run(call, segment)));
  }
  co_return Status();
}

template <typename Call>
Task<Status> SegmentedExchange::run_lanes(const Call& call, Task<Status> first) {
  std::array<std::optional<Task<Status>>, DeviceSegments::kMostSlots> lanes;
  lanes[0].emplace(std::move(first));
  for (size_t lane = 1; lane < std::min(num_lanes(), call.num_segments); ++lane) {
    lanes[lane].emplace(run_lane(call, lane));
  }
  for (auto& lane : lanes) {
    if (lane) lane->resume();
  }
  Status status;
  for (auto& lane : lanes) {
    if (!lane) continue;
    Status ended = co_await lane->end();
    if (status.ok()) status = std::move(ended);
  }
  co_return status;
}

messaging::View SegmentedExchange::view_of(Scope scope, size_t segment) noexcept {
  uint32_t first_slot = static_cast<uint32_t>(segment) * kExchangeSlotsPerSegment % messaging::kFirstReplaySlot;
  if (operation_.replay) first_slot += messaging::kFirstReplaySlot;
  if (scope == Scope::kEveryone) return messaging::View(exchange_, first_slot);
  const messaging::Topology& topology = exchange_.topology();
  return {exchange_,
          {.ranks = topology.column(topology.local_index_of(exchange_.rank())),
           .rank = topology.host_of(exchange_.rank()),
           .first_slot = first_slot,
           .on_one_host = topology.is_one_host()}};
}

Task<Status> SegmentedExchange::run(const Collective& call, size_t segment) {
  const messaging::Topology& topology = exchange_.topology();
  const bool takes_part =
      call.scope == Scope::kEveryone || topology.local_index_of(exchange_.rank()) < topology.num_columns();
  if (!takes_part) co_return Status();
  const DeviceSegments::Buffers buffers = device_->buffers(segment);
  collectives::CollectiveArguments part = call.arguments;
  part.inputs = buffers.inputs;
  part.outputs = buffers.outputs;
  if (call.scope == Scope::kColumn) {
    part.reduction = collectives::levels_of(call.arguments).between_hosts;
    if (part.root >= 0) part.root = topology.host_of(part.root);
  }
  part.whole = &call.arguments;
  part.part = segment;
  messaging::View view = view_of(call.scope, segment);
  if (buffers.kind != transport::OperationKind{}) {
    part.kind = buffers.kind;
    part.whole = nullptr;
    part.part = 0;
    co_return co_await collectives::run_stage(view, part);
  }
  AXON_CO_TRY(co_await call.algorithm(view, part));
  view.release_scratch();
  co_return Status();
}

Task<Status> SegmentedExchange::run_collective(collectives::Algorithm algorithm,
                                               const collectives::CollectiveArguments& arguments, Scope scope) {
  const Collective call{algorithm, arguments, scope, device_->count()};
  co_return co_await run_lanes(call, run_lane(call, 0));
}

void SegmentedExchange::post(messaging::Batch& batch, const LongMessage& message, size_t segment) noexcept {
  messaging::Message header = message.header;
  header.part = static_cast<uint32_t>(segment);
  Buffer buffer;
  if (device_ == nullptr) {
    const collectives::Chunks segments(message.buffer.num_bytes, segment_bytes(message.buffer.num_bytes));
    buffer = slice(message.buffer, segments[segment]);
  } else if (message.is_sent) {
    const ConstBuffer filled = device_->buffers(segment).inputs[0];
    buffer = {const_cast<std::byte*>(filled.data), filled.num_bytes, filled.kind};
  } else {
    buffer = device_->buffers(segment).outputs[0];
  }
  message.is_sent ? batch.send(header, buffer) : batch.receive(header, buffer);
}

Task<Status> SegmentedExchange::run(const LongMessage& message, size_t segment) {
  messaging::Batch batch(exchange_);
  post(batch, message, segment);
  co_return co_await batch;
}

Task<Status> SegmentedExchange::run_first_lane(messaging::Batch& first, const LongMessage& message) {
  AXON_CO_TRY(end_segment(0, co_await first));
  co_return co_await run_lane(message, num_lanes());
}

Task<Status> SegmentedExchange::move(LongMessage message) {
  AXON_CO_TRY(co_await Filled(*this, 0));
  messaging::Batch first(exchange_);
  post(first, message, 0);
  operation_.note_posted();
  if (message.num_segments > 1) {
    AXON_CO_TRY(co_await exchange_.numbered());
    if (!message.is_sent) message.header.peer = exchange_.matched_source();
    message.header.number = *exchange_.message_number();
  }
  co_return co_await run_lanes(message, run_first_lane(first, message));
}

Task<Status> SegmentedExchange::send(messaging::Message message, ConstBuffer buffer) {
  const Buffer whole{const_cast<std::byte*>(buffer.data), buffer.num_bytes, buffer.kind};
  return move({message, /*is_sent=*/true, whole, count_segments(buffer.num_bytes)});
}

Task<Status> SegmentedExchange::receive(messaging::Message message, Buffer buffer) {
  Status status = co_await move({message, /*is_sent=*/false, buffer, count_segments(buffer.num_bytes)});
  if (!status.ok()) exchange_.refuse_later_parts();
  co_return status;
}

}  // namespace axon::engine
