// What is being sent: a call's arguments or an answer.
//
//   outbound.open("name of a function");                   // or nothing, for an answer
//   ValueWriter(outbound.bytes()).text("a plain value");   // any number of values
//   outbound.add({.dtype = …, .shape = shape, .data = {data, num_bytes}});
//   outbound.seal();
//
// Keeps its memory from one message to the next. Small tensors are copied by seal(), others are borrowed until the
// message has left, or owned by an Owner.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "memory/buffer.hpp"
#include "memory/owner.hpp"
#include "messaging/messenger.hpp"
#include "rpc/core/header_frame.hpp"
#include "rpc/core/values.hpp"

namespace axon::rpc {

// Contiguous, in the order of its dimensions.
struct TensorView {
  uint8_t dtype = 0;
  MemoryKind kind = MemoryKind::kHost;  // where it is to be thought of; the data itself lies on the host
  std::span<const int64_t> shape;
  ConstBuffer data;
};

class Outbound : private transport::Completion {
 public:
  // Told by the progress owner once nothing of a message moves any more, unless send() has said so.
  class Listener {
   public:
    virtual void on_sent() noexcept = 0;

   protected:
    ~Listener() = default;
  };

  explicit Outbound(Listener& listener) noexcept : transport::Completion{&Outbound::on_done}, listener_(listener) {}
  Outbound(const Outbound&) = delete;
  Outbound& operator=(const Outbound&) = delete;

  // At most kLongestName bytes.
  void open(std::string_view name = {});
  // For values, between open() and seal().
  ByteVector& bytes() noexcept { return bytes_; }
  // Since open().
  bool has_values() const noexcept { return bytes_.size() > sizeof(HeaderFramePrefix) + name_num_bytes_; }
  // At most kMostTensors times, of kMostDimensions.
  size_t add(const TensorView& tensor, Owner owner = {});
  // Likewise, of memory that the receiver reads where it lies: its owner goes once that is done. `tensor.data` is not
  // read, and may be of any device. Only for receivers that accept it.
  size_t expose(const TensorView& tensor, const MemoryHandle& memory_handle, Owner owner);
  // It does not leave before the flag is not 0, which a device writes; nor before those that were given already. Its
  // owner may go while the device has not written, with a message that never leaves.
  void leave_when(const std::atomic<uint32_t>& flag, Owner owner) { start_flags_.push_back({&flag, std::move(owner)}); }
  void seal();
  // The same message as another that is sealed, in place of open() and seal(): reads what that has borrowed, for as
  // long as its owner is kept.
  void copy(const Outbound& sealed, Owner owner);

  // One of the flags that it still waits for; null: it may leave.
  const std::atomic<uint32_t>* start_flag() const noexcept;
  std::string_view name() const noexcept {
    return {reinterpret_cast<const char*>(bytes_.data()) + sizeof(HeaderFramePrefix), name_num_bytes_};
  }

  // Where the values begin, once sealed: for those of a fixed length that are known only when it leaves.
  std::byte* values_begin() noexcept { return bytes_.data() + sizeof(HeaderFramePrefix) + name_num_bytes_; }

  // Once sealed: kInvalidArgument where one of its bounds has been passed (header_frame.hpp).
  const Status& fits() const noexcept { return fits_; }

  // Once sealed, or empty. The header is the header frame's; payload frames are of `payload_kind`. Fails if it cannot
  // leave, or does not fit. A failure on the way is for those who watch the peer. Progress owner only.
  Status send(messaging::Messenger& messenger, transport::PeerId peer, const transport::MessageHeader& header,
              transport::OperationKind payload_kind) noexcept;
  // Nothing of it is in the transport's hands.
  bool at_rest() const noexcept { return num_moving_ == 0; }
  bool exposes() const noexcept {
    return std::ranges::any_of(payload_frames_, [](const PayloadFrame& frame) { return frame.is_exposed; });
  }
  // The transport is gone, and so moves nothing.
  void come_to_rest() noexcept { num_moving_ = 0; }

  // Whether somebody's memory is borrowed, or a flag.
  bool has_owners() const noexcept { return !payload_frames_.empty() || !start_flags_.empty(); }
  // Lets go of what it borrowed or owned; at rest only.
  void clear() noexcept;

 private:
  struct Tensor {
    Tensor() noexcept {}  // whatever it is not given stays unwritten

    TensorDescriptor descriptor;
    size_t shape_offset;
    ConstBuffer data;
    Owner owner;
    MemoryHandle memory_handle;  // of one that is exposed
  };
  struct PayloadFrame {
    uint32_t index;  // among the message's tensors
    ConstBuffer data;
    Owner owner;
    bool is_exposed;
  };

  struct StartFlag {
    const std::atomic<uint32_t>* flag;
    Owner owner;
  };

  void refuse(std::string why);
  uint16_t element_num_bytes_of(const TensorView& tensor);
  size_t locate_tensors(size_t num_before);
  static void on_done(transport::Completion& self, Status status) noexcept;

  Listener& listener_;
  size_t num_moving_ = 0;

  ByteVector bytes_;
  Status fits_;
  uint8_t name_num_bytes_ = 0;
  std::vector<Tensor> tensors_;
  std::vector<int64_t> shapes_;
  std::vector<PayloadFrame> payload_frames_;
  std::vector<StartFlag> start_flags_;
};

}  // namespace axon::rpc
