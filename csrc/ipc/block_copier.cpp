#include "ipc/block_copier.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/clock.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"

namespace axon::ipc {

// 4 MiB take some 100 µs, but longer while the GPU does other work.
static constexpr std::chrono::milliseconds kSpinTime{2};
static constexpr std::chrono::microseconds kSleepTime{50};

Result<BlockCopier*> BlockCopier::of(int device) {
  static std::mutex mutex;
  static auto& copiers =
      *new std::map<int, std::unique_ptr<BlockCopier>>;  // never destroyed: copies may run until the process exits
  const std::lock_guard lock(mutex);
  std::unique_ptr<BlockCopier>& copier = copiers[device];
  if (copier) return copier.get();
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(device);
  Result<Arena*> arena = Arena::of(device);
  if (!arena.ok()) return std::move(arena.status());
  Result<ZeroCopyReader*> reader = ZeroCopyReader::of(device);
  if (!reader.ok()) return std::move(reader.status());
  Result<cuda::Event> order = cuda::Event::create_untimed();
  if (!order.ok()) return std::move(order.status());
  AXON_TRY(kernels::load_copy_blocks());
  copier.reset(new BlockCopier(device, *arena.value(), *reader.value(), std::move(order).value()));
  return copier.get();
}

Status BlockCopier::UnderWay::wait() const {
  const auto spin_until = sync::Clock::now() + kSpinTime;
  while (flag().load(std::memory_order_acquire) == 0) {
    if (sync::Clock::now() < spin_until) {
      std::this_thread::yield();
      continue;
    }
    const cuda::RelaxedCapture beside_captures;
    AXON_TRY(stream_.check());
    std::this_thread::sleep_for(kSleepTime);
  }
  return Status();
}

Result<BlockCopier::UnderWay> BlockCopier::copy(const Request& request) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(device_);
  if (request.after) {
    Result<bool> captured = is_capturing(*request.after);
    if (!captured.ok()) return std::move(captured.status());
    if (captured.value()) return Status(ErrorCode::kInvalidArgument, "the stream is being captured into a CUDA graph");
  }
  Result<StreamMarker> marker = StreamMarker::make();
  if (!marker.ok()) return std::move(marker.status());
  const bool waits = request.after && !request.after->is_idle();
  Supplies supplies{.earlier = waits ? request.after : std::nullopt, .marker = std::move(marker).value()};
  while (true) {
    Result<Lack> lack = launch(request, supplies);
    if (!lack.ok()) {
      // Some of the blocks may be moving, and nothing would say when they have moved.
      if (supplies.stream) (void)supplies.stream->synchronize();
      return std::move(lack.status());
    }
    if (lack.value() == Lack::kNothing) {
      return UnderWay(*supplies.stream, std::move(supplies.marker), std::move(supplies.table));
    }
    if (lack.value() == Lack::kLane) {
      AXON_TRY(add_lane(lanes_for(supplies.earlier)));
      continue;
    }
    Result<PinnedPool::Piece> table = PinnedPool::instance().take(supplies.num_table_bytes);
    if (!table.ok()) return std::move(table.status());
    supplies.table.emplace(std::move(table).value());
  }
}

Result<BlockCopier::Lack> BlockCopier::launch(const Request& request, Supplies& supplies) {
  const LaunchLedger::Launching launching = arena_.launches().launching();
  Result<Blocks> blocks = request.fill();
  if (!blocks.ok()) return std::move(blocks.status());
  kernels::BlockUnits units;
  if (request.method != Method::kCopyEngine && !suits_copy_engines(blocks.value())) {
    units = kernels::plan_units(blocks.value());
    supplies.num_table_bytes = units.count * sizeof(kernels::BlockCopy);
    if (!take_table(supplies)) return Lack::kTable;
  }
  const std::lock_guard lock(mutex_);
  Lane* const lane = take_lane(supplies.earlier);
  if (lane == nullptr) return Lack::kLane;
  const cuda::StreamView stream = lane->stream;
  if (supplies.earlier) AXON_TRY(follow(*lane, *supplies.earlier));
  supplies.stream = stream;
  AXON_TRY(enqueue(blocks.value(), units, supplies));
  AXON_TRY(arena_.launches().note(order_, stream));
  AXON_TRY(supplies.marker.place(stream));
  return Lack::kNothing;
}

// Returns null if all are busy and there may be more. Copies that wait for one stream of the caller share a few lanes,
// so that they leave some for those that wait for other streams.
BlockCopier::Lane* BlockCopier::take_lane(std::optional<cuda::StreamView> earlier) {
  Lanes& lanes = lanes_for(earlier);
  Lane* idle = nullptr;
  std::vector<Lane*> shared;
  for (const std::unique_ptr<Lane>& lane : lanes.all) {
    if (idle != nullptr && !earlier) break;
    if (lane->stream.view().is_idle()) {
      idle = lane.get();
    } else if (earlier && lane->follows == earlier->get()) {
      shared.push_back(lane.get());
    }
  }
  if (shared.size() >= kMostLanesOfStream) return shared[lanes.next++ % shared.size()];
  if (idle != nullptr) return idle;
  return lanes.all.size() < kMostLanes ? nullptr : lanes.all[lanes.next++ % lanes.all.size()].get();
}

// Threads that come at once may add a few more than kMostLanes.
Status BlockCopier::add_lane(Lanes& lanes) {
  Result<cuda::Stream> stream = cuda::Stream::create();
  if (!stream.ok()) return std::move(stream.status());
  Result<cuda::Event> earlier = cuda::Event::create_untimed();
  if (!earlier.ok()) return std::move(earlier.status());
  AXON_TRY(arena_.launches().note(order_, stream.value()));  // creates the event that launches record
  const std::lock_guard lock(mutex_);
  lanes.all.push_back(std::make_unique<Lane>(Lane{std::move(stream).value(), std::move(earlier).value()}));
  return Status();
}

bool BlockCopier::take_table(Supplies& supplies) {
  if (supplies.table && supplies.table->num_bytes() >= supplies.num_table_bytes) return true;
  supplies.table.reset();
  std::optional<PinnedPool::Piece> resting = PinnedPool::instance().take_resting(supplies.num_table_bytes);
  if (resting) supplies.table.emplace(*std::move(resting));
  return supplies.table.has_value();
}

Status BlockCopier::follow(Lane& lane, cuda::StreamView earlier) {
  lane.follows = earlier.get();
  AXON_TRY(earlier.record(lane.earlier));
  return lane.stream.view().wait(lane.earlier);
}

bool BlockCopier::suits_copy_engines(const Blocks& blocks) noexcept {
  if (blocks.size() == 1) return true;
  return blocks.size() <= kFewBlocks &&
         std::ranges::all_of(blocks, [](const kernels::BlockCopy& block) { return block.num_bytes >= kLongBlock; });
}

// Without units, copy engines copy the blocks.
Status BlockCopier::enqueue(const Blocks& blocks, const kernels::BlockUnits& units, const Supplies& supplies) {
  if (units.count == 0) {
    for (const kernels::BlockCopy& block : blocks) {
      AXON_TRY(copy_async(block.target, block.source, block.num_bytes, *supplies.stream));
    }
    return Status();
  }
  auto* const entries = reinterpret_cast<kernels::BlockCopy*>(supplies.table->data());
  kernels::fill_units(blocks, units, entries);
  return kernels::copy_blocks(entries, units.count, *supplies.stream);
}

}  // namespace axon::ipc
