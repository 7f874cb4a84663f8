// The overlay network of a group: which ranks are connected even if no message between them calls for it.
//
//   for (const int other : overlay::watched_by(rank, size)) …    // from the start, so that losses are noticed
//   for (const int other : overlay::notified_by(rank, size)) …   // of failures; they notify others in turn
//
// Up to messaging::Team::kMostFullyConnected ranks are all connected with each other. In a larger group each rank
// watches the next and the previous one, and notices travel between ranks whose distance is a power of two. So the
// connections of a rank grow with the logarithm of the ranks, as do the steps of a notice. It reaches all ranks that
// are left, even if many are gone.
#pragma once

#include <vector>

namespace axon::engine::overlay {

// Both return each rank once, without this one.
std::vector<int> watched_by(int rank, int size);
std::vector<int> notified_by(int rank, int size);

}  // namespace axon::engine::overlay
