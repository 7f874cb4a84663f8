#include "ipc/registrations/registration_record.hpp"

#include <bitset>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace axon {

namespace {

// A segment's record, and one behind it for each of its pieces.
struct SegmentWire {
  uint32_t number;
  uint32_t num_pieces;
  uint64_t num_bytes;
  LegacyHandle legacy;
};
struct PieceWire {
  int32_t descriptor;
  uint32_t reserved;
  uint64_t num_bytes;
};
static_assert(sizeof(SegmentWire) == 80 && sizeof(PieceWire) == 16);
static_assert(std::is_trivially_copyable_v<SegmentWire> && std::is_trivially_copyable_v<PieceWire>);

template <typename T>
void append(std::vector<std::byte>& bytes, const T& value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), begin, begin + sizeof value);
}

// Takes records from the begin of what is left.
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
  return {ErrorCode::kInvalidArgument, "the peer's list of segments: " + why};
}

Result<SegmentRecord> take_record(Reader& reader) {
  const std::optional<SegmentWire> wire = reader.take<SegmentWire>();
  if (!wire) return refuse("it ends within a segment");
  SegmentRecord record{.number = wire->number, .num_bytes = wire->num_bytes, .pieces = {}, .legacy = wire->legacy};
  const std::string name = "segment " + std::to_string(wire->number);
  if (wire->number == 0 || wire->number > kLastSegment) return refuse(name + " has an impossible number");
  if (wire->num_bytes == 0 || wire->num_bytes > kMostSegmentBytes) return refuse(name + " has an impossible size");
  uint64_t num_left = wire->num_bytes;
  for (uint32_t i = 0; i < wire->num_pieces; ++i) {
    const std::optional<PieceWire> piece = reader.take<PieceWire>();
    if (!piece) return refuse(name + " ends within a piece");
    if (piece->descriptor < 0) return refuse(name + " has a piece without a descriptor");
    if (piece->num_bytes == 0 || piece->num_bytes > num_left) return refuse(name + " is not as long as its pieces");
    num_left -= piece->num_bytes;
    record.pieces.push_back({.descriptor = piece->descriptor, .num_bytes = piece->num_bytes});
  }
  if (wire->num_pieces > 0 && num_left > 0) return refuse(name + " is longer than its pieces");
  return record;
}

}  // namespace

std::vector<std::byte> encode(std::span<const SegmentRecord> records) {
  std::vector<std::byte> bytes;
  for (const SegmentRecord& record : records) {
    append(bytes, SegmentWire{.number = record.number,
                              .num_pieces = static_cast<uint32_t>(record.pieces.size()),
                              .num_bytes = record.num_bytes,
                              .legacy = record.legacy});
    for (const SegmentPiece& piece : record.pieces) {
      append(bytes, PieceWire{.descriptor = piece.descriptor, .reserved = 0, .num_bytes = piece.num_bytes});
    }
  }
  return bytes;
}

Result<std::vector<SegmentRecord>> decode_records(std::span<const std::byte> bytes) {
  if (bytes.size() > kMostRecordBytes) return refuse(std::to_string(bytes.size()) + " bytes are too many");
  std::vector<SegmentRecord> records;
  std::bitset<kSegmentSlots> taken;
  for (Reader reader(bytes); !reader.is_done();) {
    Result<SegmentRecord> record = take_record(reader);
    if (!record.ok()) return std::move(record.status());
    const size_t slot = record.value().number % kSegmentSlots;
    if (taken.test(slot)) return refuse("two segments in slot " + std::to_string(slot));
    taken.set(slot);
    records.push_back(std::move(record).value());
  }
  return records;
}

}  // namespace axon
