#include "rpc/core/values.hpp"

#include <bit>
#include <concepts>
#include <cstring>
#include <limits>

namespace axon::rpc {

static constexpr uint8_t kTensorType = 1;

// MessagePack is big endian, unlike the hosts.
template <std::integral T>
static T swapped(T value) noexcept {
  if constexpr (sizeof(T) == 1) return value;
  if constexpr (sizeof(T) == 2) return static_cast<T>(__builtin_bswap16(static_cast<uint16_t>(value)));
  if constexpr (sizeof(T) == 4) return static_cast<T>(__builtin_bswap32(static_cast<uint32_t>(value)));
  if constexpr (sizeof(T) == 8) return static_cast<T>(__builtin_bswap64(static_cast<uint64_t>(value)));
}

template <typename T>
void ValueWriter::put(uint8_t code, T value) {
  const T big_endian = swapped(value);
  const size_t offset = bytes_.size();
  bytes_.resize(offset + 1 + sizeof big_endian);
  bytes_[offset] = static_cast<std::byte>(code);
  std::memcpy(bytes_.data() + offset + 1, &big_endian, sizeof big_endian);
}

void ValueWriter::integer(int64_t value) {
  if (value >= 0) return unsigned_integer(static_cast<uint64_t>(value));
  if (value >= -32) return put_byte(static_cast<uint8_t>(value));
  if (value >= std::numeric_limits<int8_t>::min()) return put(0xd0, static_cast<int8_t>(value));
  if (value >= std::numeric_limits<int16_t>::min()) return put(0xd1, static_cast<int16_t>(value));
  if (value >= std::numeric_limits<int32_t>::min()) return put(0xd2, static_cast<int32_t>(value));
  put(0xd3, value);
}

void ValueWriter::unsigned_integer(uint64_t value) {
  if (value <= 0x7f) return put_byte(static_cast<uint8_t>(value));
  if (value <= UINT8_MAX) return put(0xcc, static_cast<uint8_t>(value));
  if (value <= UINT16_MAX) return put(0xcd, static_cast<uint16_t>(value));
  if (value <= UINT32_MAX) return put(0xce, static_cast<uint32_t>(value));
  put(0xcf, value);
}

void ValueWriter::real(double value) {
  put(0xcb, std::bit_cast<uint64_t>(value));
}

void ValueWriter::put_length(size_t length, uint8_t most_fixed, uint8_t fixed, uint8_t code8, uint8_t code16,
                             uint8_t code32) {
  if (length <= most_fixed) return put_byte(static_cast<uint8_t>(fixed | length));
  if (code8 != 0 && length <= UINT8_MAX) return put(code8, static_cast<uint8_t>(length));
  if (length <= UINT16_MAX) return put(code16, static_cast<uint16_t>(length));
  put(code32, static_cast<uint32_t>(length));
}

void ValueWriter::put_bytes(std::span<const std::byte> bytes) {
  const size_t offset = bytes_.size();
  bytes_.resize(offset + bytes.size());
  copy_few(bytes_.data() + offset, bytes.data(), bytes.size());
}

void ValueWriter::text(std::string_view value) {
  put_length(value.size(), 31, 0xa0, 0xd9, 0xda, 0xdb);
  put_bytes(std::as_bytes(std::span(value)));
}

void ValueWriter::binary(std::span<const std::byte> value) {
  if (value.size() <= UINT8_MAX) {
    put(0xc4, static_cast<uint8_t>(value.size()));
  } else if (value.size() <= UINT16_MAX) {
    put(0xc5, static_cast<uint16_t>(value.size()));
  } else {
    put(0xc6, static_cast<uint32_t>(value.size()));
  }
  put_bytes(value);
}

void ValueWriter::array(size_t num_values) {
  put_length(num_values, 15, 0x90, 0, 0xdc, 0xdd);
}

void ValueWriter::map(size_t num_pairs) {
  put_length(num_pairs, 15, 0x80, 0, 0xde, 0xdf);
}

void ValueWriter::tensor(size_t index) {
  put_byte(0xd5);
  put(kTensorType, static_cast<uint16_t>(index));
}

template <typename T>
bool ValueReader::take(T& value) noexcept {
  if (rest_.size() < sizeof value) return false;
  std::memcpy(&value, rest_.data(), sizeof value);
  value = swapped(value);
  rest_ = rest_.subspan(sizeof value);
  return true;
}

Value ValueReader::next() noexcept {
  uint8_t code = 0;
  if (!take(code)) return {};
  if (code <= 0x7f) return {.kind = Value::Kind::kInteger, .integer = code, .bytes = {}};
  if (code >= 0xe0) return {.kind = Value::Kind::kInteger, .integer = static_cast<int8_t>(code), .bytes = {}};
  if (code <= 0x8f) return {.kind = Value::Kind::kMap, .count = code & 0x0fu, .bytes = {}};
  if (code <= 0x9f) return {.kind = Value::Kind::kArray, .count = code & 0x0fu, .bytes = {}};
  if (code <= 0xbf) return span_of(Value::Kind::kText, code & 0x1fu);
  if (code == 0xc0) return {.kind = Value::Kind::kNothing, .bytes = {}};
  if (code == 0xc2 || code == 0xc3) return {.kind = Value::Kind::kBoolean, .boolean = code == 0xc3, .bytes = {}};
  if (code >= 0xc4 && code <= 0xc6) return bytes_of(Value::Kind::kBinary, code, 0xc4);
  if (code == 0xca || code == 0xcb) return real_of(code);
  if (code >= 0xcc && code <= 0xd3) return integer_of(code);
  if (code == 0xd5) return tensor_of();
  if (code >= 0xd9 && code <= 0xdb) return bytes_of(Value::Kind::kText, code, 0xd9);
  if (code == 0xdc || code == 0xdd) return count_of(Value::Kind::kArray, code == 0xdd);
  if (code == 0xde || code == 0xdf) return count_of(Value::Kind::kMap, code == 0xdf);
  return {};
}

Value ValueReader::integer_of(uint8_t code) noexcept {
  const auto read = [this]<typename T>(T number) -> Value {
    if (!take(number)) return {};
    if (std::unsigned_integral<T> && static_cast<uint64_t>(number) > static_cast<uint64_t>(INT64_MAX)) {
      return {.kind = Value::Kind::kUnsigned, .count = static_cast<uint64_t>(number), .bytes = {}};
    }
    return {.kind = Value::Kind::kInteger, .integer = static_cast<int64_t>(number), .bytes = {}};
  };
  switch (code) {
    case 0xcc:
      return read(uint8_t{});
    case 0xcd:
      return read(uint16_t{});
    case 0xce:
      return read(uint32_t{});
    case 0xcf:
      return read(uint64_t{});
    case 0xd0:
      return read(int8_t{});
    case 0xd1:
      return read(int16_t{});
    case 0xd2:
      return read(int32_t{});
    default:
      return read(int64_t{});
  }
}

Value ValueReader::real_of(uint8_t code) noexcept {
  uint32_t narrow = 0;
  uint64_t wide = 0;
  if (code == 0xca) {
    if (!take(narrow)) return {};
    return {.kind = Value::Kind::kReal, .real = std::bit_cast<float>(narrow), .bytes = {}};
  }
  if (!take(wide)) return {};
  return {.kind = Value::Kind::kReal, .real = std::bit_cast<double>(wide), .bytes = {}};
}

Value ValueReader::bytes_of(Value::Kind kind, uint8_t code, uint8_t first_code) noexcept {
  uint8_t short_length = 0;
  uint16_t length = 0;
  uint32_t long_length = 0;
  switch (code - first_code) {
    case 0:
      return take(short_length) ? span_of(kind, short_length) : Value();
    case 1:
      return take(length) ? span_of(kind, length) : Value();
    default:
      return take(long_length) ? span_of(kind, long_length) : Value();
  }
}

Value ValueReader::span_of(Value::Kind kind, uint64_t length) noexcept {
  if (length > rest_.size()) return {};
  const Value value{.kind = kind, .bytes = rest_.first(length)};
  rest_ = rest_.subspan(length);
  return value;
}

Value ValueReader::count_of(Value::Kind kind, bool is_long) noexcept {
  uint16_t count = 0;
  uint32_t long_count = 0;
  if (is_long ? !take(long_count) : !take(count)) return {};
  const uint64_t total = is_long ? long_count : count;
  if (total > rest_.size()) return {};  // each value takes at least one byte
  return {.kind = kind, .count = total, .bytes = {}};
}

Value ValueReader::tensor_of() noexcept {
  uint8_t type = 0;
  uint16_t index = 0;
  if (!take(type) || type != kTensorType || !take(index)) return {};
  return {.kind = Value::Kind::kTensor, .count = index, .bytes = {}};
}

}  // namespace axon::rpc
