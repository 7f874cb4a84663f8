// What waits for one process of a LoopbackFabric, and what the fabric knows of it. Guarded by the fabric's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <unordered_map>
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
  std::unique_ptr<WaitingSend> waiting;  // in place of bytes
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
  // Puts a parcel in, wherever the plan wants it, and wakes a sleeper. `number`: of the send, if it is a message.
  void put(Parcel parcel, const FaultPlan& plan, uint64_t number = 0);
  void ring();
  void silence();
  std::deque<Parcel> take_due(size_t at_most);
  // The sends whose payloads this process has not fetched, delivered or not.
  std::vector<const WaitingSend*> waiting_sends() const;
  // Stands for what waits: an address of any alignment, as UCX's are.
  void* next_handle(WaitingSend& waiting) noexcept {
    static_assert(sizeof waiting >= 8);
    return reinterpret_cast<std::byte*>(&waiting) + num_handles++ % 8;
  }
  void clear() noexcept;

  std::mt19937_64 random;
  std::deque<Parcel> parcels;
  std::unordered_map<void*, std::unique_ptr<WaitingSend>> held;  // delivered, not fetched yet
  std::vector<uint32_t> met;                                     // processes it has added as peers
  uint64_t num_handles = 0;
  uint64_t num_rounds = 0;
  uint64_t num_steps = 0;
  size_t num_unfetched = 0;  // sends of this process that wait for their receivers
  int event_fd;
  bool armed = false;
  bool rung = false;
  bool dead = false;
  bool wedged = false;
  bool closed = false;  // its transport is gone
};

}  // namespace axon::transport
