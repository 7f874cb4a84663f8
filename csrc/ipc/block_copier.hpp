// Copies blocks between memory of one GPU, memory of peer processes that is mapped for it, and pinned host memory. The
// copies run on streams of their own: after the caller's earlier work, and beside its later work.
//
//   Result<BlockCopier*> copier = BlockCopier::of(device);
//   AXON_TRY(copier.value()->await(pid, location, num_bytes));                 // memory of a peer, once
//   Result<BlockCopier::UnderWay> copy = copier.value()->copy({.fill = fill, .after = stream});
//   … copy.value().flag() …                                                    // set once the bytes are visible
//
// One block is copied by a copy engine, which is faster than a kernel at all sizes (docs/adr/0053-*). A list is copied
// by one kernel.
//
// Lives as long as the process. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "ipc/pinned_pool.hpp"
#include "ipc/stream_marker.hpp"
#include "ipc/zero_copy_get.hpp"
#include "kernels/copy_blocks.hpp"

namespace axon::ipc {

class BlockCopier {
 public:
  static Result<BlockCopier*> of(int device);

  // A copy that has been launched. Destroy it once its flag is set, and not before.
  class UnderWay {
   public:
    const std::atomic<uint32_t>& flag() const noexcept { return marker_.flag(); }
    // Blocks until the flag is set, or the device has failed: the flag is never set then, and what the copy uses must
    // be leaked.
    Status wait() const;

   private:
    friend class BlockCopier;
    UnderWay(cuda::StreamView stream, StreamMarker marker, std::optional<PinnedPool::Piece> table) noexcept
        : stream_(stream), marker_(std::move(marker)), table_(std::move(table)) {}
    cuda::StreamView stream_;
    StreamMarker marker_;
    std::optional<PinnedPool::Piece> table_;
  };

  using Blocks = std::vector<kernels::BlockCopy>;
  enum class Method : uint8_t { kAny, kCopyEngine };  // kernels cannot use all memory of other GPUs of this process
  struct Request {
    // Returns the blocks, of one byte or more. Peers' memory in them comes from find(), called within it.
    std::function<Result<Blocks>()> fill;
    std::optional<cuda::StreamView> after{};  // not under capture; nothing: the copy starts at once
    Method method = Method::kAny;
  };
  // Fails with kInvalidArgument if the stream is under capture.
  Result<UnderWay> copy(const Request& request);

  // See ZeroCopyReader.
  Status await(int32_t pid, const ExposedLocation& location, size_t num_bytes) {
    return reader_.await(pid, location, num_bytes);
  }
  Result<std::byte*> find(int32_t pid, const ExposedLocation& location, size_t num_bytes) {
    return reader_.find(pid, location, num_bytes);
  }

  int device() const noexcept { return device_; }

 private:
  // The most lanes of each kind. Copies that wait for different streams of the caller delay each other only once all
  // lanes are taken.
  static constexpr size_t kMostLanes = 64;
  // The most lanes of copies that wait for one stream of the caller.
  static constexpr size_t kMostLanesOfStream = 4;
  // From this length on, blocks of a short list are copied by copy engines, one after the other.
  static constexpr uint64_t kLongBlock = uint64_t{4} << 20;
  static constexpr size_t kFewBlocks = 8;

  struct Lane {
    cuda::Stream stream;
    cuda::Event earlier;             // the caller's work
    cudaStream_t follows = nullptr;  // the caller's stream that the latest copy waits for; compared only
  };
  struct Lanes {
    std::vector<std::unique_ptr<Lane>> all;
    size_t next = 0;
  };

  BlockCopier(int device, Arena& arena, ZeroCopyReader& reader, cuda::Event order) noexcept
      : device_(device), arena_(arena), reader_(reader), order_(std::move(order)) {}

  // The resources that one launch uses. Allocating them may wait for a busy device, so no lock is held meanwhile.
  struct Supplies {
    std::optional<cuda::StreamView> earlier{};  // the caller's, if it is busy
    StreamMarker marker;
    std::optional<PinnedPool::Piece> table{};
    size_t num_table_bytes = 0;                // that the launch needs
    std::optional<cuda::StreamView> stream{};  // on which something may have been launched
  };
  enum class Lack : uint8_t { kNothing, kLane, kTable };

  // Returns what has to be allocated first. Nothing is launched then.
  Result<Lack> launch(const Request& request, Supplies& supplies);
  Lanes& lanes_for(std::optional<cuda::StreamView> earlier) noexcept { return earlier ? lanes_after_ : lanes_at_once_; }
  Lane* take_lane(std::optional<cuda::StreamView> earlier);
  Status add_lane(Lanes& lanes);
  static bool take_table(Supplies& supplies);
  static Status follow(Lane& lane, cuda::StreamView earlier);
  static Status enqueue(const Blocks& blocks, const kernels::BlockUnits& units, const Supplies& supplies);
  static bool suits_copy_engines(const Blocks& blocks) noexcept;

  const int device_;
  Arena& arena_;
  ZeroCopyReader& reader_;
  const StreamOrder order_;  // identifies our copies in the launch ledger

  std::mutex mutex_;  // guards the lanes, and what is enqueued there
  Lanes lanes_at_once_;
  Lanes lanes_after_;  // of copies that wait for streams of the caller, which may wait for copies that start at once
};

}  // namespace axon::ipc
