// Long messages that wait for their stripes to be sent and acknowledged.
//
// Threads: the progress owner adds and removes messages, the threads of rails take stripes and send them. A thread
// reads a payload only while it holds a StripePayload, to encode a stripe or for one system call that does not block.
// remove() waits for these, so no payload is read after it. A stripe stays assigned to the rail that has taken it until
// its message is removed, and is taken again if that rail breaks.
//
//   outgoing.add(number, {.peer = peer, .ticket = ticket, .payload = payload, .stripe_num_bytes = length});
//   std::optional<Stripe> stripe = outgoing.take(peer, rail);                // a thread of a rail
//   const StripePayload payload = outgoing.open(*stripe, num_sent);
//   if (payload.state() == StripePayload::State::kNeeded) send(socket, payload.data(), …);
//   outgoing.finish(*stripe);                                                // sent, or the rail is closed
//   outgoing.take_back(peer, rail);                                          // the rail has broken
//   outgoing.remove(number, OutgoingStripes::Why::kAcknowledged);
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/data_type.hpp"
#include "memory/buffer.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

class StripePayload;

class OutgoingStripes {
 public:
  // Rails of a peer are numbered below this.
  static constexpr size_t kMostRails = 16;

  struct Message {
    PeerId peer = 0;
    uint64_t ticket = 0;
    ConstBuffer payload;
    size_t stripe_num_bytes = 0;
    DataType dtype = DataType::kByte;
  };

  struct Stripe {
    uint64_t number = 0;  // of its message
    uint64_t ticket = 0;
    size_t offset = 0;
    size_t num_bytes = 0;
    DataType dtype = DataType::kByte;
  };

  enum class Why : uint8_t { kAcknowledged, kGivenUp };

  // The number is not in use.
  void add(uint64_t number, const Message& message);
  // Waits until no thread reads the message's payload.
  void remove(uint64_t number, Why why) noexcept;

  // Assigns the next stripe to the rail. Messages to a peer take turns.
  std::optional<Stripe> take(PeerId peer, size_t rail) noexcept;
  // Returns the payload of the stripe from `num_sent` on.
  StripePayload open(const Stripe& stripe, size_t num_sent) noexcept;
  // Called when a stripe that was taken has been sent, or its rail was closed.
  void finish(const Stripe& stripe) noexcept;
  // Stripes that are assigned to this rail will be taken again.
  void take_back(PeerId peer, size_t rail) noexcept;

 private:
  friend class StripePayload;

  static constexpr uint8_t kUnassigned = 0xFF;

  struct Pending {
    Message message;
    std::vector<uint8_t> rails;  // by stripe; kUnassigned: to be taken
    size_t next = 0;             // all stripes before it are assigned
    size_t num_readers = 0;      // threads that read the payload
    size_t num_sending = 0;      // stripes that were taken and not finished
    bool is_awaited = false;     // remove() waits for the readers
    std::optional<Why> removed;  // if acknowledged, it stays until no stripe of it is being sent
  };

  void close(uint64_t number) noexcept;

  std::mutex mutex_;  // guards the following members
  std::condition_variable unused_;
  std::unordered_map<uint64_t, Pending> pending_;                    // by number
  std::unordered_map<PeerId, std::deque<uint64_t>> has_unassigned_;  // messages with stripes to be taken
};

// The right of a thread to read a part of a message's payload.
class StripePayload {
 public:
  enum class State : uint8_t {
    kNeeded,
    kNotNeeded,  // the whole message is acknowledged: what remains of the stripe will be dropped
    kGone,       // the message was given up, so the stripe cannot be completed
  };

  explicit StripePayload(State state) noexcept : state_(state) {}
  StripePayload(OutgoingStripes& stripes, uint64_t number, const std::byte* data) noexcept
      : stripes_(&stripes), number_(number), data_(data), state_(State::kNeeded) {}
  StripePayload(const StripePayload&) = delete;
  StripePayload& operator=(const StripePayload&) = delete;
  ~StripePayload() {
    if (stripes_ != nullptr) stripes_->close(number_);
  }

  State state() const noexcept { return state_; }
  const std::byte* data() const noexcept { return data_; }  // kNeeded only

 private:
  OutgoingStripes* const stripes_ = nullptr;
  const uint64_t number_ = 0;
  const std::byte* const data_ = nullptr;
  const State state_;
};

}  // namespace axon::transport
