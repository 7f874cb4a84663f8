// A message being received: the arguments of a call or an answer. Its header frame and payload frames arrive in any
// order.
//
// Large tensors land in separate memory: in one HostBuffer each, or where the receiver decides after it knows the
// tensors' sizes (TensorDestinations::kAsked). Nothing from the wire is trusted before it is compared with what has
// arrived and what is allowed. The progress owner uses it until it is complete, and then its receiver.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/intrusive_list.hpp"
#include "base/status.hpp"
#include "engine/engine.hpp"
#include "memory/host_buffer.hpp"
#include "memory/owner.hpp"
#include "messaging/inbox.hpp"
#include "rpc/core/exposure.hpp"
#include "rpc/core/header_frame.hpp"

namespace axon::rpc {

enum class TensorDestinations : uint8_t {
  kBlocks,
  kAsked,  // by the listener of on_announced(), which must call accept()
};

class Inbound : private transport::Completion {
 public:
  struct Tensor {
    Tensor() noexcept {}  // not defaulted: that would clear it first, which is as slow as reading a header frame

    uint8_t dtype = 0;
    MemoryKind kind = MemoryKind::kHost;  // of the sender's tensor
    std::span<const int64_t> shape;
    Buffer data;             // valid until this Inbound is used again, unless the buffer was taken or handed out
    HostBuffer host_buffer;  // for payload frames, unless the receiver gave their destination
    Owner owner;             // passed to accept() with the destination
    Exposure exposure;       // of an exposed tensor: the reader keeps it while it reads
    MemoryHandle memory_handle{};
    TensorLocation location = TensorLocation::kHeaderFrame;
    bool begun = false;  // a payload frame that has arrived or is being fetched
  };

  // The progress owner calls each of these at most once. It calls on_announced() when the descriptions of a message's
  // tensors have arrived, and on_complete() when all of the message has. It calls on_broken() if the message will never
  // be complete, and nothing afterwards.
  class Listener {
   public:
    virtual void on_announced(Inbound& inbound) noexcept = 0;
    virtual void on_complete(Inbound& inbound) noexcept = 0;
    virtual void on_broken(Inbound& inbound, Status reason) noexcept = 0;

   protected:
    ~Listener() = default;
  };

  // Limits on what peers can make this process store.
  struct Limits {
    uint64_t max_message_num_bytes = 0;
    size_t max_early_payload_frames = 0;  // per message
    size_t max_early_num_bytes = 0;       // for all messages that share the count
    size_t* num_early_bytes = nullptr;    // progress owner only; outlives all messages under way
    bool accepts_exposed = false;         // whether exposed tensors are allowed
  };

  Inbound() noexcept;
  ~Inbound();
  Inbound(const Inbound&) = delete;
  Inbound& operator=(const Inbound&) = delete;

  // Prepares for a message. Not allowed while a transfer is running.
  void open(engine::Engine& engine, Listener& listener, const Limits& limits) noexcept;
  void set_destinations(TensorDestinations destinations) noexcept { destinations_ = destinations; }
  // Call once per message.
  void on_header_frame(const transport::Payload& payload) noexcept;
  void on_payload_frame(const transport::CallHeader& header, const transport::Payload& payload) noexcept;
  // Sets the destinations of the tensors, in the announced number and sizes. A null buffer selects the default
  // location. `owners`, as many or none, are kept until let_go(); they stay with the caller if the message has already
  // ended.
  void accept(std::span<const Buffer> buffers, std::span<Owner> owners = {}) noexcept;
  // Stops all notifications; what still arrives is refused.
  void abandon() noexcept;
  // Returns whether the transport uses none of its memory.
  bool at_rest() const noexcept { return num_moving_ == 0; }
  // The transport is gone, so that no transfer is running.
  void come_to_rest() noexcept { num_moving_ = 0; }
  // let_go() releases the owners that accept() took. This may run user code: only at rest, and without the token.
  bool has_owners() const noexcept { return has_owners_; }
  void let_go() noexcept;
  // Frees the memory of what has arrived: only at rest, without owners.
  void give_back() noexcept;

  // Valid after the message is announced or complete.
  std::string_view name() const noexcept { return name_; }
  std::span<const std::byte> values() const noexcept { return values_; }
  std::span<Tensor> tensors() noexcept { return tensors_; }

 private:
  enum class State : uint8_t { kEmpty, kFetchingHeaderFrame, kAsking, kReceiving, kComplete, kClosed };

  static void on_done(transport::Completion& self, Status status) noexcept;
  void on_moved(Status status) noexcept;
  void fetch(void* rendezvous, Buffer into) noexcept;
  void understand() noexcept;
  void allocate_blocks() noexcept;
  bool give_block(Tensor& tensor) noexcept;
  void receive_early() noexcept;
  void release_early(messaging::Unexpected& message) noexcept;
  void place(uint32_t index, const transport::Payload& payload) noexcept;
  void complete_if_all_arrived() noexcept;
  void fail(ErrorCode code, const char* why) noexcept;
  void drop(const transport::Payload& payload) noexcept;
  void drop_early() noexcept;

  engine::Engine* engine_ = nullptr;
  Listener* listener_ = nullptr;
  Limits limits_;
  TensorDestinations destinations_ = TensorDestinations::kBlocks;
  State state_ = State::kEmpty;
  size_t num_moving_ = 0;
  size_t num_missing_ = 0;
  std::vector<std::byte> bytes_;
  std::string_view name_;
  std::span<const std::byte> values_;
  std::vector<Tensor> tensors_;
  IntrusiveList<messaging::Unexpected> early_;  // payload frames that arrived before their destination was known
  size_t num_early_ = 0;
  bool has_owners_ = false;
};

}  // namespace axon::rpc
