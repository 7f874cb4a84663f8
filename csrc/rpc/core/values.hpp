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

/// Appends values to a message. An array or map is followed by its values, which may be arrays and maps again. One
/// thread at a time may use it. All functions throw std::bad_alloc if there is no memory.
class ValueWriter {
 public:
  /// @param bytes where the values go; referenced, not owned
  explicit ValueWriter(ByteVector& bytes) noexcept : bytes_(bytes) {}

  /// Writes Python's None.
  void nothing() { put_byte(0xc0); }
  /// Writes a truth value.
  void boolean(bool value) { put_byte(value ? 0xc3 : 0xc2); }
  /// Writes an integer.
  void integer(int64_t value);
  /// Writes an integer that may be beyond an int64_t.
  void unsigned_integer(uint64_t value);
  /// Writes a floating-point number.
  void real(double value);
  /// Writes text.
  /// @param value UTF-8 of less than 2^32 bytes, which is copied; Python cannot read other bytes
  void text(std::string_view value);
  /// Writes bytes.
  /// @param value less than 2^32 bytes, which are copied
  void binary(std::span<const std::byte> value);
  /// Begins an array.
  /// @param num_values how many values follow, less than 2^32
  void array(size_t num_values);
  /// Begins a map.
  /// @param num_pairs how many keys follow, each with its value; less than 2^32
  void map(size_t num_pairs);
  /// Writes a reference to a tensor of the message.
  /// @param index the tensor's index in the message
  void tensor(size_t index);

 private:
  void put_byte(uint8_t byte) { bytes_.push_back(static_cast<std::byte>(byte)); }
  template <typename T>
  void put(uint8_t code, T value);
  void put_bytes(std::span<const std::byte> bytes);
  void put_length(size_t length, uint8_t most_fixed, uint8_t fixed, uint8_t code8, uint8_t code16, uint8_t code32);

  ByteVector& bytes_;
};

/// A value that was read, or the beginning of an array or map.
struct Value {
  /// The kind tells which member is set: the one of that name, or `count` for kUnsigned, kArray, kMap and kTensor.
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

  /// @return the bytes of a text or binary value, valid as long as the message; empty for other kinds
  std::string_view text() const noexcept { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

/// Reads the values of a message in order. Copies continue independently. One thread at a time may use it.
class ValueReader {
 public:
  /// @param values the encoded values; referenced, not owned
  explicit ValueReader(std::span<const std::byte> values) noexcept : rest_(values) {}

  /// Reads one value, or the beginning of an array or map, whose values the next calls return.
  /// @return the value; of kind kBroken at the end and for bytes that are not valid, and then the rest has no meaning.
  /// A
  ///   count is never larger than the number of bytes left, so it is safe to allocate for it.
  Value next() noexcept;
  /// @return whether all values have been read
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
