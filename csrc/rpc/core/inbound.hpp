// What is being received: a call's arguments or an answer, as its header frame and payload frames come, in any order.
//
// Large tensors land in memory of their own: a HostBuffer for each, or wherever the receiver says once it knows what is
// coming (TensorDestinations::kAsked). Nothing that the wire says is believed before it is compared with what has come
// and may come. Used by the progress owner, until it is complete; then by whoever gets it.
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
  kAsked,  // by whoever is told of its tensors: accept() has to follow on_announced()
};

class Inbound : private transport::Completion {
 public:
  struct Tensor {
    Tensor() noexcept {}  // not defaulted: that would clear all of it first, as slow as reading a header frame

    uint8_t dtype = 0;
    MemoryKind kind = MemoryKind::kHost;  // of the sender's
    std::span<const int64_t> shape;
    Buffer data;  // valid as long as this Inbound is not used again, unless the buffer is taken, or it was handed out
    HostBuffer host_buffer;  // of payload frames, unless they went where the receiver said
    Owner owner;             // whatever came with that
    Exposure exposure;       // of one that is exposed: kept for as long as it is read, by the handle
    MemoryHandle memory_handle{};
    TensorLocation location = TensorLocation::kHeaderFrame;
    bool begun = false;  // a payload frame that has come, or is being fetched
  };

  // Told by the progress owner, once each at most: of a message with tensors, that their descriptions are there;
  // that all of it is; or that it never will be, and nothing after that.
  class Listener {
   public:
    virtual void on_announced(Inbound& inbound) noexcept = 0;
    virtual void on_complete(Inbound& inbound) noexcept = 0;
    virtual void on_broken(Inbound& inbound, Status reason) noexcept = 0;

   protected:
    ~Listener() = default;
  };

  // What peers may make this process keep.
  struct Limits {
    uint64_t max_message_num_bytes = 0;
    size_t max_early_payload_frames = 0;  // of a message
    size_t max_early_num_bytes = 0;       // of all messages that share the count
    size_t* num_early_bytes = nullptr;    // Progress owner only; outlives all messages that are under way
    bool accepts_exposed = false;         // whether tensors may come that are exposed
  };

  Inbound() noexcept;
  ~Inbound();
  Inbound(const Inbound&) = delete;
  Inbound& operator=(const Inbound&) = delete;

  // Ready for a message. Not while one moves.
  void open(engine::Engine& engine, Listener& listener, const Limits& limits) noexcept;
  void set_destinations(TensorDestinations destinations) noexcept { destinations_ = destinations; }
  // Once.
  void on_header_frame(const transport::Payload& payload) noexcept;
  void on_payload_frame(const transport::MessageHeader& header, const transport::Payload& payload) noexcept;
  // Where the tensors go, as many and as long as announced; a buffer of null: where it would lie otherwise. `owners`,
  // as many or none, are theirs until let_go(), and stay with the caller if the message has ended meanwhile.
  void accept(std::span<const Buffer> buffers, std::span<Owner> owners = {}) noexcept;
  // Nobody is told any more; what comes is refused.
  void abandon() noexcept;
  // Nothing of it is in the transport's hands.
  bool at_rest() const noexcept { return num_moving_ == 0; }
  // The transport is gone, and so moves nothing.
  void come_to_rest() noexcept { num_moving_ = 0; }
  // Lets go of what accept() brought, which may run code of theirs: at rest, without the token.
  bool has_owners() const noexcept { return has_owners_; }
  void let_go() noexcept;
  // The memory of what has come: at rest, without owners.
  void give_back() noexcept;

  // Once announced or complete.
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
  void complete_if_all_came() noexcept;
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
  IntrusiveList<messaging::Unexpected> early_;  // payload frames that came before the memory they go to was known
  size_t num_early_ = 0;
  bool has_owners_ = false;
};

}  // namespace axon::rpc
