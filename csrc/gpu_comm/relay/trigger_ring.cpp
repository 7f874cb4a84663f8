#include "gpu_comm/relay/trigger_ring.hpp"

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <new>
#include <optional>

#include "base/log.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"

namespace axon::gpu_comm {

namespace {

struct Memory {
  std::array<std::atomic<uint32_t>, kernels::kNumTriggers> entries{};
  alignas(64) std::atomic<uint32_t> num_taken{0};
};

struct Ring {
  std::optional<cuda::PinnedMemory> memory;
  const engine::Engine* reader = nullptr;

  Memory& contents() const noexcept { return *reinterpret_cast<Memory*>(memory->data()); }
};

// Kernels of earlier graphs may write to the ring at any time, also while one engine follows another that has ended.
Status begin(Ring& ring, engine::Engine& engine) {
  if (!ring.memory) {
    const cuda::RelaxedCapture beside_captures;
    Result<cuda::PinnedMemory> memory = cuda::PinnedMemory::allocate(sizeof(Memory));
    if (!memory.ok()) return std::move(memory.status());
    ring.memory = std::move(memory).value();
    new (ring.memory->data()) Memory{};
  }
  ring.reader = &engine;
  engine.exclusively([&] { engine.replays().watch({ring.contents().entries, ring.contents().num_taken}); });
  return Status();
}

}  // namespace

Result<kernels::Trigger> next_trigger(engine::Engine& engine) {
  static auto* mutex = new std::mutex;
  static auto* rings = new std::map<int, Ring>;  // never destroyed: kernels may run until the process ends
  static uint32_t latest_id = 0;
  const std::lock_guard lock(*mutex);
  Ring& ring = (*rings)[cuda::current_device()];
  if (ring.reader != &engine) AXON_TRY(begin(ring, engine));
  Memory& memory = ring.contents();
  return kernels::Trigger{.id = ++latest_id,
                          .entries = reinterpret_cast<uint32_t*>(memory.entries.data()),
                          .num_taken = reinterpret_cast<const uint32_t*>(&memory.num_taken)};
}

static void poll_always(engine::Engine& engine, const std::string& why) {
  log::info("a CUDA graph cannot wake the engine, which polls from now on: " + why);
  engine.exclusively([&] { engine.replays().poll_always(); });
}

bool can_wake_at_launch(cuda::StreamView capturing, engine::Engine& engine) {
  const Result<bool> is_body = cuda::is_body_of_conditional(capturing);
  if (is_body.ok() && !is_body.value()) return true;
  poll_always(engine, is_body.ok() ? "the body of a conditional node holds calls" : is_body.status().message());
  return false;
}

// Engines are never freed.
void wake_at_launch(cuda::StreamView capturing, engine::Engine& engine) {
  const auto wake = [](void* data) { static_cast<engine::Engine*>(data)->replays().wake(); };
  const Status status = cuda::call_beside(capturing, wake, &engine);
  if (!status.ok()) poll_always(engine, status.message());
}

}  // namespace axon::gpu_comm
