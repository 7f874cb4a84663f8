// How long those who drive the engine spin and sleep. tests/model has a file of this name with fewer rounds.
#pragma once

#include <chrono>

namespace axon::pace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long a waiter drives although nothing moves, before it sleeps. Waking it costs its peer a system call and itself
// some 50 µs: spin for as long as a peer's own work between two collectives usually takes.
inline constexpr milliseconds kSpinBudget{4};
// Rounds that move nothing before a waiter offers its core to others: ranks may outnumber cores.
inline constexpr unsigned kRoundsBeforeYield = 64;
// … or before it pauses: a pause takes as long as a round or two, and what is answered at once would come amid it.
inline constexpr unsigned kRoundsBeforePause = 16;
inline constexpr unsigned kRoundsBetweenClockReads = 32;
// So many idle rounds that take so long have given the core to others: there are too few. Who sleeps is then served
// before who spins, so for some time waiters give up after kRoundsBeforeYield, and the background thread sleeps until
// the transport has something: for kShortestOversubscribed, twice as long each time that it is found anew, half as long
// when not.
inline constexpr microseconds kContended{500};
inline constexpr milliseconds kShortestOversubscribed{2};
inline constexpr milliseconds kLongestOversubscribed{128};

// The background thread: drives without pause for so long after something moved …
inline constexpr microseconds kHot{100};
// … then sleeps, and only after so long dares to make senders pay for its wake-up.
inline constexpr milliseconds kWarm{5};
inline constexpr microseconds kShortSleep{50};
inline constexpr microseconds kLongSleep{500};
inline constexpr milliseconds kDeepSleepRunning{20};  // deadlines are looked after in between
// … or is idle while a waiter blocks, who may not tell when it goes where processes outnumber cores.
inline constexpr milliseconds kIdle{5};
inline constexpr milliseconds kDeepSleepIdle{500};  // until a fault of a device hook is seen
// However busy, it looks after the peers' processes once in so many rounds, as every sleep does.
inline constexpr unsigned kRoundsBetweenLooks = 4096;

}  // namespace axon::pace
