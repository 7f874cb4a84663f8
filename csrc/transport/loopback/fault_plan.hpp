// What goes wrong in a LoopbackFabric, and when: decided by a seed, the same on every run that makes the same calls.
//
// The default plan has no faults: messages arrive in order, sends end at once unless the receiver has to fetch them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace axon::transport {

struct FaultPlan {
  uint64_t seed = 0;

  // Payloads above wait at the sender until they are fetched.
  size_t largest_eager_num_bytes = 8000;
  // Messages that may wait for one process; a send to a full mailbox stays pending.
  size_t mailbox_capacity = 1024;

  // Probabilities, from 0 to 1.
  double pending = 0;  // a transfer that could end at once ends in a later progress(), and reads its memory only then
  double delay = 0;    // a message is held back,
  int longest_delay = 8;  // at most for so many of its receiver's progress() calls
  double reorder = 0;     // a message is put anywhere among those that wait

  // The n-th send or fetch of the whole fabric fails, counted from 1: at once, or told so in a later progress(). 0:
  // none.
  uint64_t failing_send = 0;
  uint64_t failing_fetch = 0;
  bool fails_late = false;

  // The message of the n-th send, counted from 1, is held back for so many of its receiver's progress() calls.
  struct Hold {
    uint64_t send;
    uint64_t num_rounds;
  };
  std::vector<Hold> holds{};

  // A process dies at its n-th step, counted from 1. A step: it sends, fetches, refuses or is about to get a message.
  struct Kill {
    uint32_t process;
    uint64_t step;
  };
  std::vector<Kill> kills{};
};

// For the failing test's output: all that it takes to run it again.
std::string to_string(const FaultPlan& plan);

}  // namespace axon::transport
