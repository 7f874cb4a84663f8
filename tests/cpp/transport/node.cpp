#include "transport/node.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

namespace axon::transport {

Bytes pattern(size_t num_bytes, uint64_t seed) {
  Bytes bytes(num_bytes);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + num_bytes;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

void Transfer::tell(Status outcome) noexcept {
  ++num_told;
  status = std::move(outcome);
}

void Transfer::on_done(Completion& self, Status outcome) noexcept {
  static_cast<Transfer&>(self).tell(std::move(outcome));
}

Node::Node(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
  transport_->set_receiver(*this);
}

Node::~Node() {
  transport_.reset();
  for (const Transfer& send : sends) EXPECT_LE(send.num_told, 1) << "a send was completed more than once";
  for (const Arrival& arrival : arrivals)
    EXPECT_LE(arrival.fetch.num_told, 1) << "a fetch was completed more than once";
}

PeerId Node::meet(Node& other, bool same_host) {
  return meet(other.transport_->address(), same_host);
}

PeerId Node::meet(std::span<const std::byte> address, bool same_host) {
  const PeerId peer = transport_->add_peer(address, same_host).value();
  const Status watched = transport_->watch_peer(peer);
  EXPECT_TRUE(watched.ok()) << watched.message();
  return peer;
}

Transfer& Node::send(PeerId peer, Bytes bytes, uint32_t sequence) {
  return start(&Transport::send, peer, std::move(bytes), sequence);
}

Transfer& Node::send_rendezvous(PeerId peer, Bytes bytes) {
  return start(&Transport::send_rendezvous, peer, std::move(bytes), 0);
}

Transfer& Node::start(Sending sending, PeerId peer, Bytes bytes, uint32_t sequence) {
  Transfer& transfer = sends.emplace_back();
  transfer.bytes = std::move(bytes);
  const OperationHeader header{.key = 7,
                               .fingerprint = {.operation = OperationKind::kPointToPoint, .dtype = dtype},
                               .source = 1,
                               .destination = 2,
                               .sequence = sequence};
  auto sent = (*transport_.*sending)(peer, header, {transfer.bytes.data(), transfer.bytes.size()}, transfer);
  if (sent) transfer.tell(std::move(*sent));
  return transfer;
}

void Node::fetch(Arrival& arrival) {
  arrival.fetch.bytes.resize(arrival.num_bytes);
  const Buffer into{arrival.fetch.bytes.data(), arrival.num_bytes};
  auto fetched = transport_->fetch(std::exchange(arrival.rendezvous, nullptr), into, arrival.fetch);
  if (fetched) arrival.fetch.tell(std::move(*fetched));
}

void Node::on_message(const MessageHeader& header, const Payload& payload) noexcept {
  Arrival& arrival = arrivals.emplace_back();
  arrival.header = header;
  arrival.num_bytes = payload.num_bytes;
  arrival.rendezvous = payload.rendezvous;
  if (payload.rendezvous == nullptr) {
    arrival.fetch.bytes.assign(payload.bytes, payload.bytes + payload.num_bytes);
    arrival.fetch.tell(Status());
  } else if (policy == Policy::kFetch) {
    fetch(arrival);
  } else if (policy == Policy::kRefuse) {
    transport_->refuse(std::exchange(arrival.rendezvous, nullptr), reason);
  }
  if (on_arrival) on_arrival(arrival);
}

void Node::on_peer_lost(PeerId peer, Status reason) noexcept {
  EXPECT_FALSE(reason.ok());
  num_unfinished_at_loss = static_cast<size_t>(std::ranges::count_if(sends, std::not_fn(&Transfer::finished)));
  lost.push_back(peer);
}

size_t Node::num_complete() const noexcept {
  return static_cast<size_t>(
      std::ranges::count_if(arrivals, [](const Arrival& arrival) { return arrival.fetch.finished(); }));
}

bool Node::all_sends_finished() const noexcept {
  return std::ranges::all_of(sends, [](const Transfer& send) { return send.finished(); });
}

bool drive(const std::vector<Node*>& nodes, const std::function<bool()>& condition, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    unsigned num_moved = 0;
    for (Node* node : nodes) num_moved += node->transport().progress();
    if (num_moved == 0) sched_yield();
  }
  return true;
}

}  // namespace axon::transport
