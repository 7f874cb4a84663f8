// One message that an operation sends or receives. It lives in the engine's size-class pool, from its posting until the
// transport has completed it. Progress owner only.
#pragma once

#include "base/intrusive_list.hpp"
#include "transport/transport.hpp"

namespace axon::messaging {

class Batch;
class Exchange;

inline constexpr uint32_t kAnySource = UINT32_MAX;

struct Request : ListNode<Request, struct InInbox>, ListNode<Request, struct InExchange>, transport::Completion {
  enum class State : uint8_t {
    kPosted,   // a receive whose message has not arrived
    kQueued,   // a send that waits for credit
    kMoving,   // the transport uses its memory, which must stay
    kRtsSent,  // the same, for a send whose payload waits here until its receiver fetches it
  };

  Exchange* exchange = nullptr;
  Batch* batch = nullptr;  // null once its operation has given up on it
  State state = State::kMoving;
  transport::PeerId peer = 0;
  transport::OperationHeader header;  // the header to send or the expected one, whose source may be kAnySource
  Buffer buffer;                      // sends only read it
};

using InboxNode = ListNode<Request, InInbox>;
using ExchangeNode = ListNode<Request, InExchange>;

}  // namespace axon::messaging
