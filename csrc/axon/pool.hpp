// Host memory that tensors are received into again and again: so much of it at most, whatever comes.
//
//   axon::Pool pool(size_t{1} << 30);
//   axon::Status added = runtime.add("update", handler, pool);   // callers get a BufferError while there is none left
//   axon::Stream batches(server, "batches", {.ask = pool.or_blocks()});   // in host buffers of the runtime's then
//
// A tensor has memory of its own, which is the pool's again when the tensor is not valid any more, or when nobody has
// what Received::take_owner has taken. Copies are the same pool; for any thread. It may go before what lies in it.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>

#include "axon/announced.hpp"

namespace axon::library {

class Pool {
 public:
  // In pages of 4 KiB, of which a tensor has up to twice as many as it needs where they have been used before. They are
  // `from`'s, which may have pinned memory or huge pages, is asked by one thread at a time and outlives what lies
  // there.
  explicit Pool(size_t max_num_bytes, std::pmr::memory_resource& from = *std::pmr::new_delete_resource());

  // An Ask: all tensors of a message go here. Where there is no memory for one, the message is refused.
  void operator()(Announced& coming) const;
  // The same, but tensors that there is none for lie in host buffers of the runtime's.
  Ask or_blocks() const;
  // One tensor goes here; false: there is no memory for it.
  bool receive(Announced& coming, size_t index) const;

  // What it holds, in use or not.
  size_t num_bytes() const noexcept;

 private:
  class State;
  std::shared_ptr<State> state_;  // owned with copies, and what lies in it
};

}  // namespace axon::library
