// Transport over UCP Active Messages. docs/wire.md: the header travels as the message's header, the payload as its
// data.
//
// All endpoints have error handling, so that those of dead peers can be closed by force: what was pending with them
// ends with an error, and what they had shared is unmapped (docs/adr/ucx-error-handling-everywhere.md). Over shared
// memory UCX itself does not notice that a peer is gone, so whoever watches its process drops it; other hosts'
// endpoints are connected at once, so that a peer is missed even if nothing was ever sent to it.
//
// Up to 64 KiB a message is eager: over shared memory inline, as long as header and payload fit into an element of its
// queue (some 90 bytes as UCX has it, 216 in an engine: comm/instance.cpp), and in one piece up to some 8 KB. Above 64
// KiB the receiver fetches it from the sender.
#pragma once

#include <ucp/api/ucp.h>

#include <deque>
#include <vector>

#include "transport/transport.hpp"
#include "transport/ucx/ucx_worker.hpp"

namespace axon {

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
  std::span<const std::byte> address() const noexcept override { return worker_.address(); }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  size_t num_descriptors_to_come(PeerId peer) const noexcept override;
  Result<std::vector<Lane>> lanes(PeerId peer) override;
  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override;
  std::optional<Status> offer(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                              Completion& completion) noexcept override;
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override;
  void refuse(void* rendezvous) noexcept override;
  void drop_peer(PeerId peer) noexcept override;
  unsigned progress() noexcept override;
  bool hears(std::chrono::milliseconds at_most) noexcept override;
  int event_fd() const noexcept override { return worker_.event_fd(); }
  bool arm() noexcept override;
  void flush(int timeout_ms) noexcept override;

 private:
  // Copying through shared memory outruns CMA (docs/adr/ucx-eager-up-to-64-kib.md): the kernel's look at each page
  // costs more. The bound keeps what comes unasked small.
  static constexpr size_t kLargestEager = size_t{64} << 10;
  // Over TCP an endpoint has a socket for each direction; UCX opens a timer with the first one, and looks for shared
  // memory by a descriptor that it closes again.
  static constexpr size_t kDescriptorsOfAnEndpoint = 3;

  struct Peer {
    UcxTransport* transport;
    PeerId id;
    bool same_host;
    std::vector<std::byte> address;
    ucp_ep_h endpoint = nullptr;
    Status loss;  // why nothing can be sent any more
    bool dropped = false;
    size_t num_pending_sends = 0;
  };

  // What we keep in UCX's requests. A completion of null: UCX has not handed the request to us yet.
  struct Pending {
    Completion* completion;
    Peer* peer;  // of sends
  };

  // A message in its receiver's hands; nested when a receiver sends to its own process.
  struct Delivery {
    const void* rendezvous;
    bool refused;
    Delivery* outer;
  };

  static Pending& pending_of(void* request) noexcept { return *static_cast<Pending*>(request); }
  static ucs_status_t on_probe(void* self, const void* header, size_t header_num_bytes, void* data, size_t num_bytes,
                               const ucp_am_recv_param_t* param) noexcept;
  static ucs_status_t on_arrival(void* self, const void* header, size_t header_num_bytes, void* data, size_t num_bytes,
                                 const ucp_am_recv_param_t* param) noexcept;
  static void on_sent(void* request, ucs_status_t status, void* self) noexcept;
  static void on_fetched(void* request, ucs_status_t status, size_t num_bytes, void* self) noexcept;
  static void on_endpoint_error(void* peer, ucp_ep_h endpoint, ucs_status_t status) noexcept;

  std::optional<Status> send_by(uint32_t protocol, PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                Completion& completion) noexcept;
  Status register_handler(unsigned id, ucp_am_recv_callback_t handler);
  Status connect(Peer& peer);
  static bool is_connected(const Peer& peer) noexcept { return peer.endpoint != nullptr && peer.loss.ok(); }
  static Result<std::vector<Lane>> lanes_of(const Peer& peer);
  void close(Peer& peer) noexcept;
  void look_after_peers() noexcept;
  void finish(void* request, ucs_status_t status, const char* call) noexcept;
  ucs_status_t deliver_rendezvous(const MessageHeader& header, void* descriptor, size_t num_bytes) noexcept;

  UcxWorker worker_;
  Receiver* receiver_ = nullptr;
  std::deque<Peer> peers_;       // UCX holds their addresses
  std::vector<Peer*> departed_;  // failed or dropped since the last progress()
  Delivery* delivery_ = nullptr;
  ucs_status_t status_of_fetch_ = UCS_INPROGRESS;  // when a fetch ends before UCX has handed out its request
  Peer itself_;                                    // for probes, by way of the queue that all of this host write
  uint64_t probe_ = 0;  // the latest that has been sent; counted from a number that nobody guesses
  uint64_t heard_ = 0;  // the latest that has come
  uint64_t num_malformed_ = 0;
  bool closing_ = false;  // nobody is told anything any more
};

}  // namespace axon
