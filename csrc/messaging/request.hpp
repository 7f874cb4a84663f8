// One message that an operation sends or waits for. Lives in the engine's size-class pool, from its posting until the
// transport has let go of it.
#pragma once

#include "base/intrusive_list.hpp"
#include "transport/transport.hpp"

namespace axon::messaging {

class Batch;
class Exchange;

inline constexpr uint32_t kAnySource = UINT32_MAX;

struct Request : ListNode<Request, struct InInbox>, ListNode<Request, struct InExchange>, transport::Completion {
  enum class State : uint8_t {
    kPosted,   // a receive whose message has not come
    kQueued,   // a send that waits for credit
    kMoving,   // in the transport's hands; its memory must stay
    kRtsSent,  // the same: a send whose payload waits here until its receiver fetches it
  };

  Exchange* exchange = nullptr;
  Batch* batch = nullptr;  // null once its operation has given up on it
  State state = State::kMoving;
  transport::PeerId peer = 0;
  transport::MessageHeader header;  // sends: what goes out. Receives: what is expected; the source may be kAnySource
  Buffer buffer;                    // sends only read it
};

using InboxNode = ListNode<Request, InInbox>;
using ExchangeNode = ListNode<Request, InExchange>;

}  // namespace axon::messaging
