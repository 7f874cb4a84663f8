// How long the threads that drive the engine spin and sleep. tests/model has a file of this name with fewer rounds.
#pragma once

#include <chrono>

namespace axon::pace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long a waiter drives while nothing moves, before it sleeps. A wake-up costs its peer a system call and itself
// some 50 µs. So it spins for as long as a peer's own work between two collectives usually takes.
inline constexpr milliseconds kSpinBudget{4};
// Rounds that move nothing before a waiter yields its core: ranks may outnumber cores.
inline constexpr unsigned kRoundsBeforeYield = 64;
// … or before it executes a pause instruction: a pause takes as long as a round or two, and would delay quick answers.
inline constexpr unsigned kRoundsBeforePause = 16;
inline constexpr unsigned kRoundsBetweenClockReads = 32;
// If this many idle rounds take this long, other threads used the core: the host is oversubscribed. The scheduler then
// serves sleeping threads before spinning ones. So for some time waiters give up after kRoundsBeforeYield, and the
// background thread sleeps until the transport has an event. That time starts at kShortestOversubscribed, doubles each
// time the host is found oversubscribed again, and halves when it is not.
inline constexpr microseconds kContended{500};
inline constexpr milliseconds kShortestOversubscribed{2};
inline constexpr milliseconds kLongestOversubscribed{128};

// The background thread drives without pause for this long after something moved …
inline constexpr microseconds kHot{100};
// … or for this long, if it works for a device, or for requests of peers, on which no thread of this process waits.
inline constexpr milliseconds kHotAlone{1};
// … then sleeps briefly, and only after this long blocks, which makes senders pay for its wake-up. Where it has
// answered requests of peers, it blocks at once: a sleep that a request does not end would delay each of them.
inline constexpr milliseconds kWarm{5};
inline constexpr microseconds kShortSleep{50};
inline constexpr microseconds kLongSleep{500};
// A device that sets a flag wakes no thread. While a flag is awaited, the thread blocks for this fraction of the time
// for which nothing has moved, at least kShortSleep and at most kLongSleep. Looking every 50 µs takes 11 % of a core,
// and every 500 µs 1.5 %.
inline constexpr int kFlagSleepFraction = 32;
// Deadlines are checked in between. The sleeps of the background thread grow to this fraction of the time for which
// nothing has moved. So operations that wait for long take little of a core, and those that have just moved are looked
// at soon. Only these looks come later: messages, ends of processes and submissions end the sleep at once.
inline constexpr milliseconds kDeepSleepRunning{20};
inline constexpr milliseconds kLongestSleepRunning{100};
inline constexpr int kDeepSleepFraction = 8;
// … or is idle while a waiter blocks. The waiter may not report its end if processes outnumber cores.
inline constexpr milliseconds kIdle{5};
inline constexpr milliseconds kDeepSleepIdle{500};  // bounds the time until a fault of a device hook is seen
// When busy, it checks the peers' processes once per this many rounds; every sleep checks them, too.
inline constexpr unsigned kRoundsBetweenLooks = 4096;

}  // namespace axon::pace
