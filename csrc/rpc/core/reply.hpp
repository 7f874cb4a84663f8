// Answers an invocation with a plain value.
//
//   reply_with(invocation, [&](ValueWriter writer) { writer.integer(number); });
#pragma once

#include "rpc/core/invocation.hpp"
#include "rpc/core/values.hpp"

namespace axon::rpc {

template <typename Write>
void reply_with(Invocation& invocation, Write write) {
  invocation.answer.open();
  write(ValueWriter(invocation.answer.bytes()));
  invocation.answer.seal();
  invocation.reply();
}

inline void reply_with_nothing(Invocation& invocation) {
  reply_with(invocation, [](ValueWriter writer) { writer.nothing(); });
}

}  // namespace axon::rpc
