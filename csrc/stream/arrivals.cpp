#include "stream/arrivals.hpp"

#include <cuda_runtime_api.h>

#include <mutex>
#include <utility>
#include <vector>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memops.hpp"
#include "stream/segments/keeper.hpp"

namespace axon {

// All of the process, for the keeper.
struct Arrivals::Registry {
  std::mutex mutex;
  std::vector<const Arrivals*> all;

  // Never destroyed: the keeper may be stuck at the process's end.
  static Registry& instance() {
    static Registry* const registry = [] {
      auto* made = new Registry;
      Keeper::instance().keep([made] { return made->tend(); });
      return made;
    }();
    return *registry;
  }

  // Again and again: a stream takes the words of one wait, and comes to the next.
  Liveliness tend() {
    const std::lock_guard lock(mutex);
    Liveliness liveliness = Liveliness::kIdle;
    for (const Arrivals* each : all) {
      if (!each->has_given_up_.load(std::memory_order_relaxed)) continue;
      each->end_waits();
      liveliness = Liveliness::kHasty;
    }
    return liveliness;
  }
};

Arrivals::Arrivals(const DeviceTeam& team, int device, Stream stream)
    : team_(team), device_(device), keepers_stream_(std::move(stream)) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  registry.all.push_back(this);
}

Result<std::unique_ptr<Arrivals>> Arrivals::open(const DeviceTeam& team, int device) {
  const RelaxedCapture beside_captures;
  const DeviceGuard guard(device);
  Result<Stream> stream = Stream::create();
  if (!stream.ok()) return std::move(stream.status());
  return std::unique_ptr<Arrivals>(new Arrivals(team, device, std::move(stream).value()));
}

Arrivals::~Arrivals() {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  std::erase(registry.all, this);
}

uint32_t* Arrivals::word(int receiver, int sender, int piece) const noexcept {
  return &reinterpret_cast<TeamState*>(team_.blocks[receiver])->arrivals[sender][piece];
}

Status Arrivals::tell(int peer, int piece, StreamView stream) const {
  const DeviceGuard guard(device_);
  return set_word(stream, word(peer, team_.rank, piece));
}

Status Arrivals::await(int piece, StreamView stream) const {
  const DeviceGuard guard(device_);
  std::vector<uint32_t*> words;
  for (int peer = 0; peer < team_.num_ranks; ++peer) {
    if (peer != team_.rank) words.push_back(word(team_.rank, peer, piece));
  }
  return take_words(stream, words);
}

void Arrivals::give_up() noexcept {
  if (!has_given_up_.exchange(true, std::memory_order_relaxed)) Keeper::instance().wake();
}

// Each byte is 1, so each word is positive.
void Arrivals::end_waits() const noexcept {
  const RelaxedCapture beside_captures;
  const DeviceGuard guard(device_);
  (void)cudaMemsetAsync(team_.state->arrivals, 1, sizeof team_.state->arrivals, keepers_stream_.view().get());
  (void)keepers_stream_.view().synchronize();
}

}  // namespace axon
