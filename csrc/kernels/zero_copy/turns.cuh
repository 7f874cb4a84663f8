// Deals the parts of a kernel's work to its blocks as they become free.
//
//   Turns turns(team.state->num_turns_taken, {.num_turns = n, .num_takers = gridDim.x});
//   for (uint32_t turn; (turn = turns.next()) < n;) …    // all threads of a block, until there are no more
//
// Blocks are unequally fast. Where every block had the same share of a broadcast of 256 MiB from one of 4 H100, the
// fastest took 413 µs, the median 663 and the slowest 790. Few blocks were left for the links at the end.
//
// One count per team suffices: only kernels of collectives use it, and those of one team do not overlap.
#pragma once

#include "kernels/ptx.cuh"

namespace axon::kernels::zero_copy {

struct TurnCounts {
  uint32_t num_turns;
  uint32_t num_takers;  // the blocks that take turns
};

class Turns {
 public:
  // `num_taken` is 0 before the kernel, and again after it.
  __device__ __forceinline__ Turns(uint32_t& num_taken, TurnCounts counts) : num_taken_(num_taken), counts_(counts) {
    if (threadIdx.x == 0) following_ = take();
  }

  // Called by all threads of a block; a barrier. Returns the block's next turn: each of 0 … num_turns − 1 once, in
  // order. At the end it returns more. Every taker must go on until then.
  __device__ __forceinline__ uint32_t next() {
    __shared__ uint32_t turns[2];  // a slow thread may still read the last one
    uint32_t& turn = turns[num_calls_++ % 2];
    if (threadIdx.x == 0) turn = following_;
    __syncthreads();
    const uint32_t result = turn;
    if (threadIdx.x == 0 && result < counts_.num_turns) following_ = take();  // arrives during the turn
    return result;
  }

 private:
  // Each taker takes one turn too many. The last of these resets the count.
  __device__ __forceinline__ uint32_t take() {
    const uint32_t taken = atomicAdd(&num_taken_, 1);
    if (taken == counts_.num_turns + counts_.num_takers - 1) store_relaxed(&num_taken_, 0);
    return taken;
  }

  uint32_t& num_taken_;
  const TurnCounts counts_;
  uint32_t num_calls_ = 0;
  uint32_t following_ = 0;  // of thread 0
};

}  // namespace axon::kernels::zero_copy
