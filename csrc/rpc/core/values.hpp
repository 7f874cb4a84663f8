// Plain values in messages: MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md). Tensors are an
// extension of type 1 whose two bytes are the tensor's index in the message, big endian as all of MessagePack.
//
//   ValueWriter writer(outbound.bytes());
//   writer.array(2);
//   writer.integer(7);
//   writer.tensor(outbound.add(view));
//
//   ValueReader reader(inbound.values());
//   Value value = reader.next();  // one token at a time: an array(2), then its two values
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string_view>
#include <vector>

namespace axon::rpc {

// Allocator for bytes that grow uninitialised: the caller of resize() writes all the new bytes.
struct UnwrittenBytes : std::allocator<std::byte> {
  template <typename>
  struct rebind {
    using other = UnwrittenBytes;
  };
  template <typename... Values>
  void construct(std::byte* place, Values... values) noexcept {
    ::new (static_cast<void*>(place)) std::byte(values...);
  }
  void construct(std::byte*) noexcept {}
};

using ByteVector = std::vector<std::byte, UnwrittenBytes>;

// Copies mostly few bytes, inline: a call to memcpy would take longer than the copy.
inline void copy_few(std::byte* to, const void* from, size_t num_bytes) noexcept {
  const auto copy_both_ends = [&]<typename Word>(Word first) {
    Word last = first;
    std::memcpy(&first, from, sizeof first);
    std::memcpy(&last, static_cast<const std::byte*>(from) + num_bytes - sizeof last, sizeof last);
    std::memcpy(to, &first, sizeof first);
    std::memcpy(to + num_bytes - sizeof last, &last, sizeof last);
  };
  if (num_bytes > 16) {
    std::memcpy(to, from, num_bytes);
  } else if (num_bytes >= 8) {
    copy_both_ends(uint64_t{});
  } else if (num_bytes >= 4) {
    copy_both_ends(uint32_t{});
  } else if (num_bytes >= 2) {
    copy_both_ends(uint16_t{});
  } else if (num_bytes == 1) {
    std::memcpy(to, from, 1);
  }
}

class ValueWriter {
 public:
  explicit ValueWriter(ByteVector& bytes) noexcept : bytes_(bytes) {}

  void nothing() { put_byte(0xc0); }
  void boolean(bool value) { put_byte(value ? 0xc3 : 0xc2); }
  void integer(int64_t value);
  void unsigned_integer(uint64_t value);
  void real(double value);
  // Lengths are below 2^32.
  void text(std::string_view value);
  void binary(std::span<const std::byte> value);
  void array(size_t num_values);
  // `num_pairs` keys follow, each with its value.
  void map(size_t num_pairs);
  void tensor(size_t index);

 private:
  void put_byte(uint8_t byte) { bytes_.push_back(static_cast<std::byte>(byte)); }
  template <typename T>
  void put(uint8_t code, T value);
  void put_bytes(std::span<const std::byte> bytes);
  void put_length(size_t length, uint8_t most_fixed, uint8_t fixed, uint8_t code8, uint8_t code16, uint8_t code32);

  ByteVector& bytes_;
};

struct Value {
  enum class Kind : uint8_t {
    kBroken,  // the values end here, are not valid MessagePack, or have a kind that is never written
    kNothing,
    kBoolean,
    kInteger,
    kUnsigned,  // larger than an int64_t
    kReal,
    kText,
    kBinary,
    kArray,
    kMap,
    kTensor,
  };

  Kind kind = Kind::kBroken;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;
  uint64_t count = 0;                // values of an array, pairs of a map, a tensor's index, or an unsigned integer
  std::span<const std::byte> bytes;  // of text and binary values

  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

class ValueReader {
 public:
  explicit ValueReader(std::span<const std::byte> values) noexcept : rest_(values) {}

  // A count is never larger than the number of bytes left, so it is safe to allocate for it.
  Value next() noexcept;
  bool at_end() const noexcept { return rest_.empty(); }

 private:
  template <typename T>
  bool take(T& value) noexcept;
  Value integer_of(uint8_t code) noexcept;
  Value real_of(uint8_t code) noexcept;
  Value bytes_of(Value::Kind kind, uint8_t code, uint8_t first_code) noexcept;
  Value count_of(Value::Kind kind, bool is_long) noexcept;
  Value span_of(Value::Kind kind, uint64_t length) noexcept;
  Value tensor_of() noexcept;

  std::span<const std::byte> rest_;
};

}  // namespace axon::rpc
