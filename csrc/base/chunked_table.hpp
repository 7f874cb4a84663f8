// A table of which most entries may never be written. It holds the state of the ranks of a large group, where a rank
// exchanges messages with few others. Memory comes in chunks of 16 entries, each at its first write.
//
//   ChunkedTable<Credit> credits(num_ranks, Credit{.num_left = 256});
//   credits[7].num_left;               // 256: an entry that was never written equals the initial one
//   --credits.writable(7).num_left;
//
// References from writable() stay valid as long as the table. Others may refer to the initial entry, so they do not
// show later writes. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace axon {

template <typename T>
class ChunkedTable {
 public:
  explicit ChunkedTable(size_t size) : size_(size), chunks_(num_chunks_of(size)) {}
  ChunkedTable(size_t size, const T& initial)
    requires std::is_copy_assignable_v<T>
      : size_(size), initial_(initial), chunks_(num_chunks_of(size)) {}

  size_t size() const noexcept { return size_; }

  const T& operator[](size_t index) const noexcept {
    const std::unique_ptr<Chunk>& chunk = chunks_[index / kChunk];
    return chunk ? (*chunk)[index % kChunk] : initial_;
  }

  T& writable(size_t index) {
    std::unique_ptr<Chunk>& chunk = chunks_[index / kChunk];
    if (!chunk) [[unlikely]]
      chunk = make_chunk();
    return (*chunk)[index % kChunk];
  }

  // Calls action(index, entry) for the entries of all chunks that have been written, in ascending order. The others
  // equal the initial entry.
  template <typename Action>
  void for_each_written(Action action) const {
    for (size_t first = 0; first < size_; first += kChunk) {
      const std::unique_ptr<Chunk>& chunk = chunks_[first / kChunk];
      if (!chunk) continue;
      for (size_t i = 0; i < kChunk && first + i < size_; ++i) action(first + i, std::as_const((*chunk)[i]));
    }
  }

 private:
  static constexpr size_t kChunk = 16;
  using Chunk = std::array<T, kChunk>;

  static size_t num_chunks_of(size_t size) noexcept { return (size + kChunk - 1) / kChunk; }

  // Entries that cannot be copied have no initial value of their own.
  [[gnu::noinline]] std::unique_ptr<Chunk> make_chunk() const {
    auto chunk = std::make_unique<Chunk>();
    if constexpr (std::is_copy_assignable_v<T>) chunk->fill(initial_);
    return chunk;
  }

  const size_t size_;
  const T initial_{};
  std::vector<std::unique_ptr<Chunk>> chunks_;
};

}  // namespace axon
