// The faults that a LoopbackFabric injects, decided by a seed: every run that makes the same calls gets the same
// faults.
//
//   LoopbackFabric fabric({.seed = seed, .delay = 0.2, .longest_delay = 4});
//
// The default plan has no faults: messages arrive in order, and sends end at once unless the receiver has to fetch the
// payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace axon::transport {

struct FaultPlan {
  uint64_t seed = 0;

  // Larger payloads wait at the sender until they are fetched.
  size_t largest_eager_num_bytes = 8000;
  // The number of messages that may wait for one process. A send to a full mailbox stays pending.
  size_t mailbox_capacity = 1024;

  // Probabilities, from 0 to 1.
  double pending = 0;  // a transfer that could end at once ends in a later progress(), and reads its memory only then
  double delay = 0;    // a message is held back
  int longest_delay = 8;  // the most progress() calls of its receiver for which it is held back
  double reorder = 0;     // a message is put at any position among those that wait

  // The n-th send or fetch of the whole fabric fails, counted from 1: at once, or in a later progress() if
  // `fails_late`. 0: none fails.
  uint64_t failing_send = 0;
  uint64_t failing_fetch = 0;
  bool fails_late = false;

  // One bit arrives changed: of the first eager message of an operation from the n-th send on, counted from 1. 0: none.
  uint64_t corrupting_send = 0;

  // The message of the n-th send, counted from 1, is held back for `num_rounds` progress() calls of its receiver.
  struct Hold {
    uint64_t send;
    uint64_t num_rounds;
  };
  std::vector<Hold> holds{};

  // A process dies at its n-th step, counted from 1. A step is a send, a fetch, a refusal or the delivery of a message.
  struct Kill {
    uint32_t process;
    uint64_t step;
  };
  std::vector<Kill> kills{};
};

// Prints all that is needed to repeat a failing run, for the test's output.
std::string to_string(const FaultPlan& plan);

}  // namespace axon::transport
