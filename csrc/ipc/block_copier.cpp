#include "ipc/block_copier.hpp"

#include <algorithm>
#include <map>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"

namespace axon::ipc {

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

Result<BlockCopier::UnderWay> BlockCopier::copy(const Request& request) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(device_);
  if (request.after) {
    Result<bool> captured = is_capturing(*request.after);
    if (!captured.ok()) return std::move(captured.status());
    if (captured.value()) return Status(ErrorCode::kInvalidArgument, "the stream is being captured into a CUDA graph");
  }
  const LaunchLedger::Launching launching = arena_.launches().launching();
  Result<Blocks> blocks = request.fill();
  if (!blocks.ok()) return std::move(blocks.status());
  const std::lock_guard lock(mutex_);
  Result<Lane*> lane = take_lane(request.after ? lanes_after_ : lanes_at_once_);
  if (!lane.ok()) return std::move(lane.status());
  const cuda::StreamView stream = lane.value()->stream;
  if (request.after) AXON_TRY(follow(*lane.value(), *request.after));
  auto table = enqueue(blocks.value(), request.method, stream);
  Status noted = table.ok() ? arena_.launches().note(order_, stream) : std::move(table.status());
  if (noted.ok()) {
    Result<StreamMarker> marker = StreamMarker::set(stream);
    if (marker.ok()) return UnderWay(std::move(marker).value(), std::move(table).value());
    noted = std::move(marker.status());
  }
  // Some of the blocks may be moving, and nothing would say when they have moved.
  (void)stream.synchronize();
  return noted;
}

Result<BlockCopier::Lane*> BlockCopier::take_lane(Lanes& lanes) {
  for (const std::unique_ptr<Lane>& lane : lanes.all) {
    if (lane->stream.view().is_idle()) return lane.get();
  }
  if (lanes.all.size() >= kMostLanes) return lanes.all[lanes.next++ % kMostLanes].get();
  Result<cuda::Stream> stream = cuda::Stream::create();
  if (!stream.ok()) return std::move(stream.status());
  Result<cuda::Event> earlier = cuda::Event::create_untimed();
  if (!earlier.ok()) return std::move(earlier.status());
  lanes.all.push_back(std::make_unique<Lane>(Lane{std::move(stream).value(), std::move(earlier).value()}));
  return lanes.all.back().get();
}

Status BlockCopier::follow(const Lane& lane, cuda::StreamView earlier) {
  if (earlier.is_idle()) return Status();
  AXON_TRY(earlier.record(lane.earlier));
  return lane.stream.view().wait(lane.earlier);
}

bool BlockCopier::suits_copy_engines(const Blocks& blocks) noexcept {
  if (blocks.size() == 1) return true;
  return blocks.size() <= kFewBlocks &&
         std::ranges::all_of(blocks, [](const kernels::BlockCopy& block) { return block.num_bytes >= kLongBlock; });
}

Result<std::optional<PinnedPool::Piece>> BlockCopier::enqueue(const Blocks& blocks, Method method,
                                                              cuda::StreamView stream) {
  if (method == Method::kCopyEngine || suits_copy_engines(blocks)) {
    for (const kernels::BlockCopy& block : blocks) {
      AXON_TRY(copy_async(block.target, block.source, block.num_bytes, stream));
    }
    return std::optional<PinnedPool::Piece>();
  }
  const kernels::BlockUnits units = kernels::plan_units(blocks);
  Result<PinnedPool::Piece> table = PinnedPool::instance().take(units.count * sizeof(kernels::BlockCopy));
  if (!table.ok()) return std::move(table.status());
  auto* const entries = reinterpret_cast<kernels::BlockCopy*>(table.value().data());
  kernels::fill_units(blocks, units, entries);
  AXON_TRY(kernels::copy_blocks(entries, units.count, stream));
  return std::optional(std::move(table).value());
}

}  // namespace axon::ipc
