#include "ipc/zero_copy_get.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"

namespace axon::ipc {

Result<ExposedLocation> expose(int device, const void* data, size_t num_bytes) {
  Result<Arena*> arena = Arena::of(device);
  if (!arena.ok()) return std::move(arena.status());
  Registrations& registrations = arena.value()->registrations();
  const cuda::IpcLocation location = registrations.locate(data, num_bytes);
  if (location.registration == 0) return Status(ErrorCode::kInvalidArgument, "peers cannot map the tensor's memory");
  return ExposedLocation{.incarnation = arena.value()->incarnation(),
                         .export_table = registrations.export_table_address(),
                         .offset = location.offset,
                         .registration = static_cast<uint32_t>(location.registration)};
}

Result<ZeroCopyReader*> ZeroCopyReader::of(int device) {
  static std::mutex mutex;
  static auto& readers =
      *new std::map<int, std::unique_ptr<ZeroCopyReader>>;  // never destroyed: copies may run until the process exits
  const std::lock_guard lock(mutex);
  std::unique_ptr<ZeroCopyReader>& reader = readers[device];
  if (reader) return reader.get();
  Result<Arena*> arena = Arena::of(device);
  if (!arena.ok()) return std::move(arena.status());
  const cuda::DeviceGuard guard(device);
  Result<cuda::Event> order = cuda::Event::create_untimed();
  if (!order.ok()) return std::move(order.status());
  reader.reset(new ZeroCopyReader(device, *arena.value(), std::move(order).value()));
  return reader.get();
}

// Returns whether the registration holds memory of this length at the location. It does not if the peer sent a wrong
// location, or if the owner's process has ended.
static bool holds(std::span<std::byte> registration, const ExposedLocation& location, size_t num_bytes) noexcept {
  return location.offset <= registration.size() && num_bytes <= registration.size() - location.offset;
}

static Status unreachable(int32_t pid, const std::string& why) {
  return {ErrorCode::kPeerLost, "the GPU memory of process " + std::to_string(pid) + " cannot be read: " + why};
}

Status ZeroCopyReader::read(int32_t pid, const ExposedLocation& location, Buffer target, cuda::StreamView stream) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(device_);
  Result<bool> captured = is_capturing(stream);
  if (!captured.ok()) return std::move(captured.status());
  if (captured.value()) {
    return {ErrorCode::kInvalidArgument,
            "a GPU tensor cannot be received while the current stream is captured into a CUDA graph"};
  }
  AXON_TRY(await(pid, location, target.num_bytes));
  // While a launch is noted here, mappings of an ended owner are not unmapped until the copy has run.
  const LaunchLedger::Launching launching = arena_.launches().launching();
  Result<std::byte*> source = find(pid, location, target.num_bytes);
  if (!source.ok()) return std::move(source.status());
  AXON_TRY(copy_async(target.data, source.value(), target.num_bytes, stream));
  return arena_.launches().note(order_, stream);
}

Status ZeroCopyReader::await(int32_t pid, const ExposedLocation& location, size_t num_bytes) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(device_);
  Result<std::shared_ptr<const RegistrationOwner>> owner = meet(pid, location);
  if (!owner.ok()) return std::move(owner.status());
  if (Status mapped = arena_.registrations().await(*owner.value(), location.registration); !mapped.ok()) {
    return unreachable(pid, mapped.message());
  }
  const Result<std::byte*> found = find(pid, location, num_bytes);
  return found.ok() ? Status() : found.status().clone();
}

Result<std::byte*> ZeroCopyReader::find(int32_t pid, const ExposedLocation& location, size_t num_bytes) {
  Result<std::shared_ptr<const RegistrationOwner>> owner = meet(pid, location);
  if (!owner.ok()) return std::move(owner.status());
  const std::span<std::byte> registration = arena_.registrations().find(*owner.value(), location.registration);
  if (!holds(registration, location, num_bytes)) return unreachable(pid, "it is not mapped to that length");
  return registration.data() + location.offset;
}

Result<std::shared_ptr<const RegistrationOwner>> ZeroCopyReader::meet(int32_t pid, const ExposedLocation& location) {
  const std::lock_guard lock(mutex_);
  if (const auto known = owners_.find({pid, location.incarnation}); known != owners_.end()) {
    return known->second.registrations;
  }
  forget_ended();
  const auto is_of_process = [pid](const auto& known) { return known.first.first == pid; };
  const auto num_arenas = static_cast<size_t>(std::ranges::count_if(owners_, is_of_process));
  if (num_arenas >= kMostArenas) {
    return unreachable(pid, "the peer named memory of more than " + std::to_string(kMostArenas) + " GPUs");
  }
  Result<PeerProcess> opened = PeerProcess::open(pid);
  if (!opened.ok()) return unreachable(pid, opened.status().message());
  auto process = std::make_shared<const PeerProcess>(std::move(opened).value());
  auto registrations =
      arena_.registrations().follow({.address = location.export_table, .incarnation = location.incarnation}, process);
  owners_.emplace(ArenaOfProcess(pid, location.incarnation), Owner{std::move(process), registrations});
  return registrations;
}

void ZeroCopyReader::forget_ended() {
  std::erase_if(owners_, [](const auto& known) { return known.second.process->has_ended(); });
}

}  // namespace axon::ipc
