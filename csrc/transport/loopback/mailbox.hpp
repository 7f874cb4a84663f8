// The messages that wait for one process of a LoopbackFabric, and the fabric's state of that process. The fabric owns
// it, and its mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "transport/loopback/fault_plan.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

// A send whose payload waits at its sender.
struct WaitingSend {
  uint32_t source;
  ConstBuffer payload;
  Completion* completion;
};

struct ArrivingMessage {
  MessageHeader header;
  std::vector<std::byte> bytes;
  std::unique_ptr<WaitingSend> waiting;  // instead of bytes
};

struct EndedTransfer {
  Completion* completion;
  Status status;
};

struct LostProcess {
  uint32_t process;
};

struct Parcel {
  uint64_t due = 0;  // in the receiver's rounds of progress
  std::variant<ArrivingMessage, EndedTransfer, LostProcess> content;
};

struct Mailbox {
  Mailbox(uint64_t seed, uint32_t process);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  bool chance(double probability);
  // Inserts a parcel at the position that the plan chooses, and wakes a sleeper. `number` is that of the send, for
  // messages.
  void put(Parcel parcel, const FaultPlan& plan, uint64_t number = 0);
  void ring();
  void silence();
  std::deque<Parcel> take_due(size_t at_most);
  // Returns the sends whose payloads this process has not fetched, whether delivered or not.
  std::vector<const WaitingSend*> waiting_sends() const;
  // Returns a handle for a waiting send: an address of any alignment, as UCX's are.
  void* next_handle(WaitingSend& waiting) noexcept {
    static_assert(sizeof waiting >= 8);
    return reinterpret_cast<std::byte*>(&waiting) + num_handles++ % 8;
  }
  void clear() noexcept;

  std::mt19937_64 random;
  std::deque<Parcel> parcels;
  std::unordered_map<void*, std::unique_ptr<WaitingSend>> held;  // delivered, not fetched yet
  std::unordered_set<uint32_t> connected;                        // processes whose loss it is told of
  uint64_t num_handles = 0;
  uint64_t num_rounds = 0;
  uint64_t num_steps = 0;
  size_t num_unfetched = 0;  // sends of this process that wait for their receivers
  int event_fd;
  bool armed = false;
  bool rung = false;
  bool dead = false;
  bool wedged = false;
  bool closed = false;  // its transport has been destroyed
};

}  // namespace axon::transport
