#include "ipc/registrations/registration_record.hpp"

#include <bitset>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace axon::ipc {

namespace {

// A registration's record, followed by one for each of its extents.
struct RegistrationWire {
  uint32_t number;
  uint32_t num_extents;
  uint64_t num_bytes;
  cuda::LegacyHandle legacy;
};
struct ExtentWire {
  int32_t descriptor;
  uint32_t reserved;
  uint64_t num_bytes;
};
static_assert(sizeof(RegistrationWire) == 80 && sizeof(ExtentWire) == 16);
static_assert(std::is_trivially_copyable_v<RegistrationWire> && std::is_trivially_copyable_v<ExtentWire>);

template <typename T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

// Takes records from the beginning of the remaining bytes.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) noexcept : left_(bytes) {}

  template <typename T>
  std::optional<T> take() noexcept {
    if (left_.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, left_.data(), sizeof value);
    left_ = left_.subspan(sizeof value);
    return value;
  }
  bool is_done() const noexcept { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

Status refuse(const std::string& why) {
  return {ErrorCode::kInvalidArgument, "the peer's export table: " + why};
}

Result<RegistrationRecord> take_record(Reader& reader) {
  const std::optional<RegistrationWire> wire = reader.take<RegistrationWire>();
  if (!wire) return refuse("it ends within a registration");
  RegistrationRecord record{
      .number = wire->number, .num_bytes = wire->num_bytes, .extents = {}, .legacy = wire->legacy};
  const std::string name = "registration " + std::to_string(wire->number);
  if (wire->number == 0 || wire->number > kLastRegistration) return refuse(name + " has an impossible number");
  if (wire->num_bytes == 0 || wire->num_bytes > kMostRegistrationBytes) return refuse(name + " has an impossible size");
  uint64_t num_left = wire->num_bytes;
  for (uint32_t i = 0; i < wire->num_extents; ++i) {
    const std::optional<ExtentWire> extent = reader.take<ExtentWire>();
    if (!extent) return refuse(name + " ends within an extent");
    if (extent->descriptor < 0) return refuse(name + " has an extent without a descriptor");
    if (extent->num_bytes == 0 || extent->num_bytes > num_left) return refuse(name + " is not as long as its extents");
    num_left -= extent->num_bytes;
    record.extents.push_back({.descriptor = extent->descriptor, .num_bytes = extent->num_bytes});
  }
  if (wire->num_extents > 0 && num_left > 0) return refuse(name + " is longer than its extents");
  return record;
}

}  // namespace

std::vector<std::byte> encode(std::span<const RegistrationRecord> records) {
  std::vector<std::byte> bytes;
  for (const RegistrationRecord& record : records) {
    append(bytes, RegistrationWire{.number = record.number,
                                   .num_extents = static_cast<uint32_t>(record.extents.size()),
                                   .num_bytes = record.num_bytes,
                                   .legacy = record.legacy});
    for (const RegistrationExtent& extent : record.extents) {
      append(bytes, ExtentWire{.descriptor = extent.descriptor, .reserved = 0, .num_bytes = extent.num_bytes});
    }
  }
  return bytes;
}

Result<std::vector<RegistrationRecord>> decode_records(std::span<const std::byte> bytes) {
  if (bytes.size() > kMostRecordBytes) return refuse(std::to_string(bytes.size()) + " bytes are too many");
  std::vector<RegistrationRecord> records;
  std::bitset<cuda::kRegistrationSlots> taken;
  for (Reader reader(bytes); !reader.is_done();) {
    Result<RegistrationRecord> record = take_record(reader);
    if (!record.ok()) return std::move(record.status());
    const size_t slot = record.value().number % cuda::kRegistrationSlots;
    if (taken.test(slot)) return refuse("two registrations share slot " + std::to_string(slot));
    taken.set(slot);
    records.push_back(std::move(record).value());
  }
  return records;
}

}  // namespace axon::ipc
