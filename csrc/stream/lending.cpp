#include "stream/lending.hpp"

#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"

namespace axon {

static constexpr std::chrono::seconds kLongestMapping{2};
static constexpr std::chrono::microseconds kLookInterval{100};

Result<LentPlace> lend(int device, const void* data, size_t num_bytes) {
  Result<Arena*> arena = Arena::of(device);
  if (!arena.ok()) return std::move(arena.status());
  Segments& segments = arena.value()->segments();
  const SegmentPlace place = segments.locate(data, num_bytes);
  if (place.segment == 0) return Status(ErrorCode::kInvalidArgument, "peers cannot map the tensor's memory");
  return LentPlace{.incarnation = arena.value()->incarnation(),
                   .board = segments.board_address(),
                   .offset = place.offset,
                   .segment = static_cast<uint32_t>(place.segment),
                   .pid = getpid()};
}

Result<Borrower*> Borrower::of(int device) {
  static std::mutex mutex;
  static auto& borrowers = *new std::map<int, std::unique_ptr<Borrower>>;  // copies may run to the very end
  const std::lock_guard lock(mutex);
  std::unique_ptr<Borrower>& borrower = borrowers[device];
  if (borrower) return borrower.get();
  Result<Arena*> arena = Arena::of(device);
  if (!arena.ok()) return std::move(arena.status());
  const DeviceGuard guard(device);
  Result<Event> order = Event::create_untimed();
  if (!order.ok()) return std::move(order.status());
  borrower.reset(new Borrower(device, *arena.value(), std::move(order).value()));
  return borrower.get();
}

// Whoever leads elsewhere than to memory of this length has not told the truth, or the owner's process has ended.
static bool holds(std::span<std::byte> segment, const LentPlace& place, size_t num_bytes) noexcept {
  return place.offset <= segment.size() && num_bytes <= segment.size() - place.offset;
}

static Status unreachable(const LentPlace& place, const std::string& why) {
  return {ErrorCode::kInternal, "the GPU memory of process " + std::to_string(place.pid) + " cannot be read: " + why};
}

Status Borrower::read(const LentPlace& place, Buffer target, StreamView stream) {
  const RelaxedCapture beside_captures;
  const DeviceGuard guard(device_);
  Result<bool> captured = is_capturing(stream);
  if (!captured.ok()) return std::move(captured.status());
  if (captured.value()) return unreachable(place, "a CUDA graph is being captured on the current stream");
  Result<std::shared_ptr<const Lender>> lender = meet(place);
  if (!lender.ok()) return std::move(lender.status());
  const SegmentEntry* const table = lender.value()->table;
  AXON_TRY(await_mapping(table, place));
  // What is mapped of an owner that has ended is not unmapped from here on, until the copy has run.
  const LaunchLedger::Launching launching = arena_.launches().launching();
  const std::span<std::byte> segment = arena_.segments().find(table, place.segment);
  if (!holds(segment, place, target.num_bytes)) return unreachable(place, "it is not mapped to that length");
  AXON_TRY(copy_async(target.data, segment.data() + place.offset, target.num_bytes, stream));
  return arena_.launches().note(order_, stream);
}

Result<std::shared_ptr<const Borrower::Lender>> Borrower::meet(const LentPlace& place) {
  const std::lock_guard lock(mutex_);
  using Known = std::shared_ptr<const Lender>;
  if (const auto known = lenders_.find(place.incarnation); known != lenders_.end()) return Known(known->second);
  forget_ended();
  Result<PeerProcess> process = PeerProcess::open(place.pid);
  if (!process.ok()) return unreachable(place, process.status().message());
  auto lender = std::make_shared<Lender>(Lender{std::move(process).value(), nullptr});
  DeviceCard card;
  card.incarnation = place.incarnation;
  card.segments = place.board;
  lender->table = arena_.segments().follow(card, &lender->process);
  lenders_.emplace(place.incarnation, lender);
  return Known(std::move(lender));
}

void Borrower::forget_ended() {
  std::erase_if(lenders_, [this](const auto& known) {
    const std::shared_ptr<Lender>& lender = known.second;
    return lender.use_count() == 1 && lender->process.has_ended() && arena_.segments().unfollow(lender->table);
  });
}

Status Borrower::await_mapping(const SegmentEntry* table, const LentPlace& place) {
  const auto deadline = std::chrono::steady_clock::now() + kLongestMapping;
  while (arena_.segments().find(table, place.segment).empty()) {
    if (std::chrono::steady_clock::now() >= deadline) return unreachable(place, "it has not been mapped in time");
    arena_.segments().look_soon();
    std::this_thread::sleep_for(kLookInterval);
  }
  return Status();
}

}  // namespace axon
