// A call whose only argument is bytes, or its answer with the same bytes.
#pragma once

#include <cstdint>
#include <string_view>

#include "rpc/core/outbound.hpp"
#include "rpc/core/values.hpp"

namespace axon {

inline void put(rpc::Outbound& outbound, std::string_view function, ConstBuffer data) {
  const auto length = static_cast<int64_t>(data.num_bytes);
  outbound.open(function);
  rpc::ValueWriter writer(outbound.bytes());
  writer.array(1);
  writer.tensor(outbound.add({.dtype = static_cast<uint8_t>(DataType::kUint8), .shape = {&length, 1}, .data = data}));
  outbound.seal();
}

}  // namespace axon
