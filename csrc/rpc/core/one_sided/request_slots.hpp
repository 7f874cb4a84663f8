// The slots of an initiator's requests at the owner: which are taken, by which transfers, and what memory the transport
// still uses for them.
//
//   if (slots.has_free()) post(slots.take(transfer));
//   Slot* slot = slots.awaiting(header.number);   // null: this answer is not awaited
//   slot->begin(slot->sending); … slot->end(slot->sending);
//   slots.give_back(*slot);                       // answered, and nothing is in flight
//
// A slot stays taken until its request is answered, even if its transfer has ended, since the owner may still fetch
// the transfer's memory.
//
// Owned by Initiator; progress owner only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.hpp"
#include "transport/transport.hpp"

namespace axon::rpc {

class Initiator;
class Transfer;

class RequestSlots {
 public:
  static constexpr uint32_t kWindow = 256;

  struct Slot;
  // The transport's use of memory: of a request, which is sent, or of an answer, which is fetched.
  struct InFlight : transport::Completion {
    explicit InFlight(Slot& of) noexcept;
    Slot& slot;
    bool is_under_way = false;
  };

  struct Slot {
    explicit Slot(Initiator& of) noexcept : initiator(of) {}
    bool is_in_flight() const noexcept { return sending.is_under_way || fetching.is_under_way; }

    Initiator& initiator;
    Transfer* transfer = nullptr;  // null: the transfer has ended, and no memory of it is in flight
    uint32_t number = 0;           // the slot's index, and the number of its uses
    size_t first = 0;              // the blocks of the request
    size_t num_blocks = 0;
    uint64_t num_bytes = 0;  // of the answer to a read
    std::vector<std::byte> frame;
    Status status;
    bool opens = false;  // a handle
    bool is_taken = false;
    bool is_answered = false;
    InFlight sending{*this};
    InFlight fetching{*this};
  };

  explicit RequestSlots(Initiator& initiator) noexcept : initiator_(initiator) {}
  RequestSlots(const RequestSlots&) = delete;
  RequestSlots& operator=(const RequestSlots&) = delete;

  bool has_free() const noexcept { return !free_.empty() || slots_.size() < kWindow; }
  // There is a free one.
  Slot& take(Transfer& transfer);
  // Nothing of the slot is in flight.
  void give_back(Slot& slot) noexcept;
  // Returns the slot of a request that is not answered yet, or null.
  Slot* awaiting(uint32_t number) noexcept;
  // The transfer has ended: only slots with memory of it in flight still refer to it.
  void detach(const Transfer& transfer) noexcept;

  void begin(InFlight& in_flight) noexcept;
  void end(InFlight& in_flight) noexcept;
  // The transport is gone, and completes nothing any more.
  void end_all() noexcept;
  bool has_in_flight() const noexcept { return num_in_flight_ != 0; }

 private:
  Initiator& initiator_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<uint32_t> free_;
  size_t num_in_flight_ = 0;
};

}  // namespace axon::rpc
