#include "ipc/device_address.hpp"

#include <cstring>
#include <string>
#include <type_traits>

namespace axon::ipc {

namespace {

// Incremented by any change to the address, to what kernels of two ranks expect of each other, or to TeamLayout.
constexpr uint32_t kVersion = 3;

// The encoding: fixed layout, little-endian like all hosts that we build for.
struct Wire {
  std::array<char, 4> magic{'a', 'x', 'g', 'p'};
  uint32_t version = kVersion;
  uint64_t incarnation = 0;
  uint64_t host = 0;
  int32_t pid = 0;
  int32_t descriptor = 0;
  std::array<uint8_t, 16> device_uuid{};
  uint64_t arena_num_bytes = 0;
  uint64_t edition = 0;
  uint64_t export_table = 0;
  uint64_t slice_offset = 0;
  uint64_t slice_num_bytes = 0;
};
static_assert(sizeof(Wire) == DeviceAddress::kNumBytes && std::is_trivially_copyable_v<Wire>);

}  // namespace

std::array<std::byte, DeviceAddress::kNumBytes> DeviceAddress::encode() const {
  Wire wire;
  wire.incarnation = incarnation;
  wire.host = host;
  wire.pid = pid;
  wire.descriptor = descriptor;
  wire.device_uuid = device_uuid;
  wire.arena_num_bytes = arena_num_bytes;
  wire.edition = edition;
  wire.export_table = export_table;
  wire.slice_offset = slice.offset;
  wire.slice_num_bytes = slice.num_bytes;
  std::array<std::byte, kNumBytes> bytes;
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

Result<DeviceAddress> DeviceAddress::decode(std::span<const std::byte> bytes) {
  const auto refuse = [&](const std::string& why) {
    return Status(ErrorCode::kInvalidArgument, "device address of " + std::to_string(bytes.size()) + " bytes: " + why);
  };
  Wire wire;
  if (bytes.size() != sizeof wire) return refuse(std::to_string(sizeof wire) + " expected");
  std::memcpy(&wire, bytes.data(), sizeof wire);
  if (wire.magic != Wire{}.magic) return refuse("not from torch_axon");
  if (wire.version != kVersion) {
    return refuse("the peer has version " + std::to_string(wire.version) + ", this process has version " +
                  std::to_string(kVersion) + ": install the same torch_axon on all ranks");
  }
  const uint64_t size = wire.arena_num_bytes;
  const bool inside = wire.slice_offset <= size && wire.slice_num_bytes <= size - wire.slice_offset;
  if (!inside || wire.slice_offset % SliceAllocator::kUnit != 0) {
    return refuse("the slice of " + std::to_string(wire.slice_num_bytes) + " bytes at " +
                  std::to_string(wire.slice_offset) + " is not within an arena of " + std::to_string(size));
  }
  return DeviceAddress{.incarnation = wire.incarnation,
                       .host = wire.host,
                       .pid = wire.pid,
                       .descriptor = wire.descriptor,
                       .device_uuid = wire.device_uuid,
                       .arena_num_bytes = wire.arena_num_bytes,
                       .edition = wire.edition,
                       .export_table = wire.export_table,
                       .slice = {.offset = wire.slice_offset, .num_bytes = wire.slice_num_bytes}};
}

}  // namespace axon::ipc
