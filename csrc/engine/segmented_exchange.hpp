// Runs an operation segment by segment: one on a device's tensors (engine/device_segments.hpp), or a long message.
//
//   SegmentedExchange segments(engine, exchange, operation.device_segments);
//   status = co_await segments.run_collective(algorithm, arguments, Scope::kEveryone);
//
// A few segments are in progress at a time. Those of a collective use slots of their own. A message's first segment is
// matched like a short message, and the later ones by the message's number. A message's length alone says how it is
// divided, so it may go from a device to host memory. Owned by the operation's coroutine; progress owner only.
#pragma once

#include <algorithm>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>

#include "base/intrusive_list.hpp"
#include "base/task.hpp"
#include "collectives/collective.hpp"
#include "collectives/patterns.hpp"
#include "engine/device_segments.hpp"
#include "engine/flag_waiters.hpp"
#include "messaging/view.hpp"

namespace axon::engine {

class Engine;
class Operation;

// The ranks among which the engine runs a collective.
enum class Scope : uint8_t {
  kEveryone,
  kColumn,  // one rank of each host, those with this rank's local index, numbered by host; see messaging/topology.hpp
};

class SegmentedExchange {
 public:
  // The length of a message's segments, the last one of which may be shorter: 4 MiB, and up to 16 MiB for long
  // messages, since each costs some time. A very long message has longer ones, since a device launches kernels for
  // each.
  static constexpr size_t segment_bytes(size_t message_bytes) noexcept {
    constexpr size_t kShortest = size_t{4} << 20;
    constexpr size_t kLong = size_t{16} << 20;
    constexpr size_t kWanted = 16;
    constexpr size_t kMost = 128;
    const size_t wanted = std::clamp(message_bytes / kWanted, kShortest, kLong);
    return collectives::rounded_to_granules(std::max(wanted, (message_bytes + kMost - 1) / kMost));
  }
  static constexpr size_t count_segments(size_t message_bytes) noexcept {
    return collectives::Chunks(message_bytes, segment_bytes(message_bytes)).count();
  }

  // `device` is null for host memory. The operation and its exchange must outlive this object.
  SegmentedExchange(Engine& engine, Operation& operation, messaging::Exchange& exchange,
                    DeviceSegments* device) noexcept
      : engine_(engine), operation_(operation), exchange_(exchange), device_(device) {}

  // The device supplies the buffers. A rank without a column does nothing in that scope.
  Task<Status> run_collective(collectives::Algorithm algorithm, const collectives::CollectiveArguments& arguments,
                              Scope scope);
  // The buffer is that of the user's tensor. If it is in a device's memory, only its length is used.
  Task<Status> send(messaging::Message message, ConstBuffer buffer);
  Task<Status> receive(messaging::Message message, Buffer buffer);

  // Returns whether a segment waits for the device.
  bool awaits_device() const noexcept { return !awaiting_.empty(); }
  // The exchange has failed: waits for the device end.
  void stop_waiting() noexcept;

  SizeClassPool& size_class_pool() const noexcept { return exchange_.size_class_pool(); }

 private:
  struct InSegments;

  // Segments in progress at a time. Over one connection, more than two are slower. Between hosts of two cores, 128 MiB
  // with 2 of them took as long as undivided, and with 4 or 16 a tenth longer.
  static constexpr size_t kHostLanes = 2;

  // Awaits that the device has filled a segment's slot, or has made it free for what is received.
  class Filled final : public FlagWaiter, public ListNode<Filled, InSegments> {
   public:
    Filled(SegmentedExchange& segments, size_t segment) noexcept : segments_(segments), segment_(segment) {}
    bool await_ready() const noexcept;
    void await_suspend(std::coroutine_handle<> waiter) noexcept;
    Status await_resume() const { return segments_.exchange_.failure().clone(); }
    void stop_waiting() noexcept;

   private:
    void on_flag_set() noexcept override;
    const std::atomic<uint32_t>& turn() const noexcept;

    SegmentedExchange& segments_;
    const size_t segment_;
    std::coroutine_handle<> waiter_;
  };

  struct Collective {
    collectives::Algorithm algorithm;
    const collectives::CollectiveArguments& arguments;
    Scope scope;
    size_t num_segments;
  };
  struct LongMessage {
    messaging::Message header;
    bool is_sent;
    Buffer buffer;
    size_t num_segments;
  };

  // Segments `segment`, `segment` + num_lanes(), …, one after the other.
  template <typename Call>
  Task<Status> run_lane(const Call& call, size_t segment);
  // Runs the lanes beside this first one.
  template <typename Call>
  Task<Status> run_lanes(const Call& call, Task<Status> first);
  Task<Status> run(const Collective& call, size_t segment);
  Task<Status> run(const LongMessage& message, size_t segment);
  Task<Status> move(LongMessage message);
  Task<Status> run_first_lane(messaging::Batch& first, const LongMessage& message);
  void post(messaging::Batch& batch, const LongMessage& message, size_t segment) noexcept;
  messaging::View view_of(Scope scope, size_t segment) noexcept;
  size_t num_lanes() const noexcept { return device_ == nullptr ? kHostLanes : device_->num_slots(); }
  Status end_segment(size_t segment, Status status) noexcept;

  Engine& engine_;
  Operation& operation_;
  messaging::Exchange& exchange_;
  DeviceSegments* const device_;
  IntrusiveList<Filled, InSegments> awaiting_;
};

}  // namespace axon::engine
