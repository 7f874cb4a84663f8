// A transport and its receiver, as tests use them. It keeps its sends until they end, and all messages that arrive.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace axon::transport {

using Bytes = std::vector<std::byte>;

// Contents that depend on the seed and the position.
Bytes pattern(size_t num_bytes, uint64_t seed);

// A transfer that counts its completions.
struct Transfer : Completion {
  Bytes bytes;
  int num_told = 0;
  Status status;

  Transfer() noexcept { done = &Transfer::on_done; }
  bool finished() const noexcept { return num_told != 0; }
  void tell(Status outcome) noexcept;
  static void on_done(Completion& self, Status outcome) noexcept;
};

struct Arrival {
  MessageHeader header;
  void* rendezvous = nullptr;  // non-null while the payload waits at the sender
  size_t num_bytes = 0;
  Transfer fetch;  // finished when the payload has been fetched

  const Bytes& bytes() const noexcept { return fetch.bytes; }
  uint32_t sequence() const noexcept { return header.as<OperationHeader>().sequence; }
};

class Node final : public Receiver {
 public:
  enum class Policy : uint8_t { kFetch, kHold, kRefuse };

  explicit Node(std::unique_ptr<Transport> transport);
  ~Node();

  Transport& transport() noexcept { return *transport_; }
  // Adds a peer and watches it, as the engine does in small groups.
  PeerId meet(Node& other, bool same_host);
  PeerId meet(std::span<const std::byte> address, bool same_host);

  Transfer& send(PeerId peer, Bytes bytes, uint32_t sequence = 0);
  Transfer& send_rendezvous(PeerId peer, Bytes bytes);
  void fetch(Arrival& arrival);

  void on_message(const MessageHeader& header, const Payload& payload) noexcept override;
  void on_peer_lost(PeerId peer, Status reason) noexcept override;
  void on_refused(const char*) noexcept override { ++num_refused; }

  void close() noexcept { transport_.reset(); }

  size_t num_complete() const noexcept;
  bool all_sends_finished() const noexcept;

  Policy policy = Policy::kFetch;
  DataType dtype = DataType::kByte;  // of what it sends
  Status reason{ErrorCode::kMismatch, "the reason of a refusal"};
  std::function<void(const Arrival&)> on_arrival;
  std::deque<Arrival> arrivals;
  std::deque<Transfer> sends;
  std::vector<PeerId> lost;
  size_t num_unfinished_at_loss = 0;  // sends of this node when it learned of the latest loss
  size_t num_refused = 0;             // messages refused by the transport itself

 private:
  using Sending = std::optional<Status> (Transport::*)(PeerId, const MessageHeader&, ConstBuffer, Completion&) noexcept;
  Transfer& start(Sending sending, PeerId peer, Bytes bytes, uint32_t sequence);

  std::unique_ptr<Transport> transport_;
};

// Drives the nodes until the condition holds. Returns whether it held before the deadline.
bool drive(const std::vector<Node*>& nodes, const std::function<bool()>& condition,
           std::chrono::milliseconds timeout = std::chrono::seconds(20));

}  // namespace axon::transport
