// A collective that only moves data, as messages between the ranks.
#pragma once

#include "collectives/collective.hpp"
#include "device/line_collectives.hpp"

namespace axon {

SendBlock to_send(const ConstBuffer& buffer, uint32_t tag = 0) noexcept;
ReceiveBlock to_receive(const Buffer& buffer, uint32_t tag = 0) noexcept;

// Those of one rank. The root sends a broadcast to itself no more than others do: its output is the input.
LineExchange messages_of(int rank, int num_ranks, const CollectiveArguments& arguments) noexcept;

}  // namespace axon
