// A bounded pool of host memory for received tensors.
//
//   axon::Pool pool(size_t{1} << 30);
//   axon::Status added = runtime.add("update", handler, pool);            // a BufferError while it is full
//   axon::Stream batches(server, "batches", {.ask = pool.or_blocks()});   // falls back to our memory
//
// The memory of a tensor returns to the pool when the tensor is no longer valid, or when the owner that
// Received::take_owner returned is destroyed. Copies refer to the same pool. Any thread may use it. The pool may be
// destroyed before tensors in its memory.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>

#include "axon/announced.hpp"

namespace axon::rpc {
class MemoryPool;
}  // namespace axon::rpc

namespace axon::library {

/// A bounded pool of host memory for received tensors.
class Pool {
 public:
  /// Makes a pool of pages of 4 KiB. A tensor in reused memory may have up to twice as many pages as it needs.
  /// @param max_num_bytes the most memory that the pool holds
  /// @param from provides the memory, which may be pinned or in huge pages. One thread at a time calls it. It must
  ///   outlive the memory.
  explicit Pool(size_t max_num_bytes, std::pmr::memory_resource& from = *std::pmr::new_delete_resource());

  /// Makes the pool an Ask that receives all tensors of a message, or refuses the message if memory is missing.
  /// @param coming the message
  void operator()(Announced& coming) const;
  /// @return an Ask that leaves tensors to memory of the runtime if the pool has none
  Ask or_blocks() const;
  /// Receives one tensor of a message into the pool.
  /// @param coming the message
  /// @param index which tensor
  /// @return whether the pool had memory for it
  bool receive(Announced& coming, size_t index) const;

  /// @return the bytes that the pool holds, in use or not
  size_t num_bytes() const noexcept;

 private:
  std::shared_ptr<rpc::MemoryPool> pool_;  // shared with copies and with tensors in its memory
};

}  // namespace axon::library
