// The memory into which stripes are received: buffers of fetches, by ticket, until all their stripes have arrived.
//
// Threads: the progress owner expects and cancels messages, the threads of rails receive into them. A thread writes to
// a buffer only while it holds a StripeMemory, for one system call that does not block or to decode what it has read.
// cancel() waits for these, so no buffer is touched after it. A stripe may be received twice at a time, with the same
// content, if a rail has broken.
//
//   incoming.expect(ticket, {.into = into, .sender = sender, .stripe_num_bytes = length});
//   …                                                          // a thread of a rail, for each part of a stripe:
//   if (const StripeMemory memory = incoming.open(sender, header, num_here)) recv(socket, memory.data(), …);
//   incoming.arrived(header);
#pragma once

#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "memory/buffer.hpp"
#include "transport/rails/rail_events.hpp"
#include "transport/rails/stripe.hpp"

namespace axon::transport {

class StripeMemory;

class IncomingStripes {
 public:
  struct Message {
    Buffer into;
    uint64_t sender = 0;  // the name of the sender's transport
    size_t stripe_num_bytes = 0;
  };

  // Whole messages are reported to `events`.
  explicit IncomingStripes(RailEvents& events) noexcept : events_(events) {}

  void expect(uint64_t ticket, const Message& message);
  // Waits until no thread writes into the message's buffer. Reports nothing about it afterwards; an event that was
  // pushed earlier may still be in the queue.
  void cancel(uint64_t ticket) noexcept;

  // Returns whether a message that is still expected has such a stripe, or none is expected by this ticket (any more).
  bool is_valid(uint64_t sender, const StripeHeader& header) const noexcept;
  // Returns the stripe's memory from `num_here` on; an empty one if the stripe is not needed any more.
  StripeMemory open(uint64_t sender, const StripeHeader& header, size_t num_here) noexcept;
  // A whole stripe is in place.
  void arrived(const StripeHeader& header) noexcept;

 private:
  friend class StripeMemory;

  struct Expected {
    Message message;
    std::vector<bool> is_here;  // by stripe
    size_t num_missing = 0;     // stripes
    size_t num_writers = 0;     // threads that write into the buffer
    bool is_cancelled = false;
  };

  static bool is_stripe_of(const Message& message, const StripeHeader& header) noexcept;
  void close(uint64_t ticket) noexcept;
  void report_if_whole(uint64_t ticket, const Expected& expected) noexcept;

  RailEvents& events_;
  mutable std::mutex mutex_;  // guards the following members
  std::condition_variable unused_;
  std::unordered_map<uint64_t, Expected> expected_;  // by ticket
};

// The right of a thread to write into a part of a message's buffer.
class StripeMemory {
 public:
  StripeMemory() noexcept = default;
  StripeMemory(IncomingStripes& stripes, uint64_t ticket, std::byte* data) noexcept
      : stripes_(&stripes), ticket_(ticket), data_(data) {}
  StripeMemory(const StripeMemory&) = delete;
  StripeMemory& operator=(const StripeMemory&) = delete;
  ~StripeMemory() {
    if (stripes_ != nullptr) stripes_->close(ticket_);
  }

  explicit operator bool() const noexcept { return stripes_ != nullptr; }
  std::byte* data() const noexcept { return data_; }

 private:
  IncomingStripes* const stripes_ = nullptr;
  const uint64_t ticket_ = 0;
  std::byte* const data_ = nullptr;
};

}  // namespace axon::transport
