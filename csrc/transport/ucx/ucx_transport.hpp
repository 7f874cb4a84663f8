// A transport over UCP Active Messages. The message's header travels as UCX's header, and the payload as its data
// (docs/wire.md). It owns its worker and endpoints; its thread rule is Transport's.
//
//   Result<UcxWorker> worker = UcxWorker::open(options, UcxTransport::request_extension());
//   Result<std::unique_ptr<Transport>> transport = UcxTransport::make(std::move(worker).value());
//
// All endpoints have error handling, so that endpoints of dead peers can be closed by force. Their pending transfers
// then end with an error, and the memory shared with them is unmapped
// (docs/adr/0021-enable-ucx-error-handling-for-all-endpoints.md). Over shared memory UCX does not notice that a peer is
// gone: the engine watches the peer's process and drops the peer. A peer of another host that is to be watched gets an
// endpoint at once, so that its loss is noticed even if no message was ever sent to it.
//
// Messages of up to 64 KiB are eager. Over shared memory they are sent inline if header and payload fit into an element
// of the queue (some 90 bytes by UCX's default, 216 in an engine: engine/network.cpp). Up to some 8 KB they travel in
// one fragment. Above 64 KiB the receiver fetches a message from the sender, or refuses it. UCX tells the sender of a
// refusal, but not the reason, and reports a late refusal not at all. The reason therefore travels in its own message,
// over the same lane and before the one that ends the sender's transfer.
#pragma once

#include <chrono>
#include <deque>
#include <vector>

#include "base/intrusive_list.hpp"
#include "base/numbered.hpp"
#include "base/size_class_pool.hpp"
#include "transport/transport.hpp"
#include "transport/ucx/ucx_library.hpp"
#include "transport/ucx/ucx_worker.hpp"

namespace axon::transport {

// More than 30 methods: Transport declares 15 of them, and 7 are callbacks of UCX.
class UcxTransport final : public Transport {
 public:
  static RequestExtension request_extension() noexcept;

  // `worker` was opened with request_extension().
  static Result<std::unique_ptr<Transport>> make(UcxWorker worker);

  explicit UcxTransport(UcxWorker worker) noexcept;
  ~UcxTransport() override;
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;

  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return address_; }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  Status watch_peer(PeerId peer) noexcept override;
  size_t num_descriptors_to_come(PeerId peer) const noexcept override;
  Result<std::vector<Lane>> lanes(PeerId peer) override;
  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override;
  std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept override;
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override;
  void refuse(void* rendezvous, const Status& why) noexcept override;
  void drop_peer(PeerId peer) noexcept override;
  unsigned progress() noexcept override;
  int event_fd() const noexcept override { return worker_.event_fd(); }
  bool arm() noexcept override;
  void flush(int timeout_ms) noexcept override;

 private:
  // Over TCP an endpoint has a socket for each direction. UCX opens a timer with the first endpoint, and probes for
  // shared memory with a descriptor that it closes again.
  static constexpr size_t kDescriptorsOfAnEndpoint = 3;

  // The ids of UCX's active messages.
  enum Id : unsigned { kMessageId = 1, kRtsId = 3, kNackId = 4 };

  struct Peer {
    UcxTransport* transport;
    PeerId id;
    bool same_host;
    std::vector<std::byte> address;
    uint64_t name;  // the name of its transport
    ucp_ep_h endpoint = nullptr;
    Status loss;  // why nothing can be sent any more
    bool dropped = false;
    size_t num_pending_sends = 0;
  };

  // Our data in each of UCX's requests. While the completion is null, UCX has not returned the request to us yet.
  struct Pending {
    Completion* completion;
    Peer* peer;  // null for fetches
  };

  struct RendezvousSend;
  struct Waiting;

  // The header of a message whose payload waits at its sender.
  struct RtsHeader {
    MessageHeader message;
    uint64_t sender;  // the name of the sender's transport
    uint64_t number;  // of the send, at the sender
  };
  static_assert(sizeof(RtsHeader) == 56);

  // The header of a NACK. The reason follows, in the same header.
  struct NackHeader {
    uint64_t addressee;  // the name of the transport that has sent the RTS
    uint64_t number;
  };
  static_assert(sizeof(NackHeader) == 16);

  // A message that the receiver is handling. Deliveries nest when a receiver sends to its own process.
  struct Delivery {
    const void* descriptor;  // UCX's
    bool refused;
    Delivery* outer;
  };

  template <typename Header>
  static std::span<const std::byte> bytes_of(const Header& header) noexcept {
    return std::as_bytes(std::span(&header, 1));
  }
  static ucs_memory_type_t memory_type_of(MemoryKind kind) noexcept {
    return kind == MemoryKind::kHost ? UCS_MEMORY_TYPE_HOST : UCS_MEMORY_TYPE_CUDA;
  }
  static Pending& pending_of(void* request) noexcept { return *static_cast<Pending*>(request); }
  static ucs_status_t on_arrival(void* self, const void* header, size_t header_num_bytes, void* data, size_t num_bytes,
                                 const ucp_am_recv_param_t* param) noexcept;
  static ucs_status_t on_rts(void* self, const void* header, size_t header_num_bytes, void* data, size_t num_bytes,
                             const ucp_am_recv_param_t* param) noexcept;
  static ucs_status_t on_nack(void* self, const void* header, size_t header_num_bytes, void* data, size_t num_bytes,
                              const ucp_am_recv_param_t* param) noexcept;
  static void on_sent(void* request, ucs_status_t status, void* self) noexcept;
  static void on_fetched(void* request, ucs_status_t status, size_t num_bytes, void* self) noexcept;
  static void on_endpoint_error(void* peer, ucp_ep_h endpoint, ucs_status_t status) noexcept;

  // Sends UCX's active message `id`, with the protocol that belongs to the id.
  std::optional<Status> send_as(Id id, PeerId peer, std::span<const std::byte> header, ConstBuffer payload,
                                Completion& completion) noexcept;
  Status conclude(RendezvousSend& send, Status ended) noexcept;
  void* release(Waiting& waiting) noexcept;
  void release_all() noexcept;
  void send_nack(uint64_t sender, uint64_t number, const Status& why) noexcept;
  ucs_status_t drop_malformed(size_t header_num_bytes, bool waits_at_sender) noexcept;
  Status register_handler(unsigned id, ucp_am_recv_callback_t handler);
  Status connect(Peer& peer);
  static bool is_connected(const Peer& peer) noexcept { return peer.endpoint != nullptr && peer.loss.ok(); }
  void close(Peer& peer) noexcept;
  void look_after_peers() noexcept;
  void finish(void* request, ucs_status_t status, const char* call) noexcept;
  void look_after_descriptors() noexcept;
  ucs_status_t deliver_rendezvous(const RtsHeader& header, void* descriptor, size_t num_bytes) noexcept;

  UcxWorker worker_;
  uint64_t name_ = 0;               // random; a process that knows it was given the address
  std::vector<std::byte> address_;  // the worker's address, then the name
  SizeClassPool pool_;
  Numbered<RendezvousSend> numbers_;
  IntrusiveList<RendezvousSend> rendezvous_sends_;  // until their transfers end
  IntrusiveList<Waiting> waiting_;                  // messages that wait at their senders, until fetched or refused
  Receiver* receiver_ = nullptr;
  std::deque<Peer> peers_;       // UCX holds their addresses
  std::vector<Peer*> departed_;  // failed or dropped since the last progress()
  Delivery* delivery_ = nullptr;
  // The status of a fetch that ends before UCX has returned its request.
  ucs_status_t status_of_fetch_ = UCS_INPROGRESS;
  uint64_t num_malformed_ = 0;
  // When to look again for descriptors that child programs must not inherit.
  std::chrono::steady_clock::time_point next_look_{};
  // We have an endpoint, or a peer has sent over its own. Both may open descriptors.
  bool has_connections_ = false;
  bool has_other_than_loopback_ = false;  // false: this host has no other interface, so there are no other hosts
  bool closing_ = false;                  // completions and the receiver are no longer called
};

}  // namespace axon::transport
