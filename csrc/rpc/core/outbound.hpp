// A message being sent: the arguments of a call or an answer.
//
//   outbound.open("name of a function");  // or nothing, for an answer
//   ValueWriter(outbound.bytes()).text("a plain value");  // any number of values
//   outbound.add({.dtype = dtype, .shape = shape, .data = {data, num_bytes}});
//   outbound.seal();
//
// Keeps its memory from one message to the next. seal() copies small tensors. It references larger ones, which stay
// unchanged until the message has left, or until their Owner is destroyed.
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

// A contiguous tensor in the order of its dimensions.
struct TensorView {
  uint8_t dtype = 0;
  MemoryKind kind = MemoryKind::kHost;  // of the original tensor; the data itself is on the host
  std::span<const int64_t> shape;
  ConstBuffer data;
};

class Outbound : private transport::Completion {
 public:
  // The progress owner calls it once the transport is done with the message, unless send() returned that already.
  class Listener {
   public:
    virtual void on_sent() noexcept = 0;

   protected:
    ~Listener() = default;
  };

  explicit Outbound(Listener& listener) noexcept : transport::Completion{&Outbound::on_done}, listener_(listener) {}
  Outbound(const Outbound&) = delete;
  Outbound& operator=(const Outbound&) = delete;

  // `name` has at most kLongestName bytes.
  void open(std::string_view name = {});
  // Plain values are appended here, between open() and seal().
  ByteVector& bytes() noexcept { return bytes_; }
  // Returns whether values were written since open().
  bool has_values() const noexcept { return bytes_.size() > sizeof(HeaderFramePrefix) + name_num_bytes_; }
  // At most kMostTensors tensors of kMostDimensions dimensions.
  size_t add(const TensorView& tensor, Owner owner = {});
  // Adds memory that the receiver reads in place; the owner is destroyed after that. `tensor.data` is not read, and may
  // be on any device. Only for receivers that accept exposed tensors.
  size_t expose(const TensorView& tensor, const MemoryHandle& memory_handle, Owner owner);
  // Holds the message back until the flag is nonzero, which a device writes; earlier flags count too. If the message is
  // never sent, the owner may be destroyed before the device has written.
  void leave_when(const std::atomic<uint32_t>& flag, Owner owner) { start_flags_.push_back({&flag, std::move(owner)}); }
  void seal();
  // Makes this the same message as a sealed one, in place of open() and seal(). It reads the memory that `sealed`
  // references while its owner is kept.
  void copy(const Outbound& sealed, Owner owner);

  // Returns one of the flags that the message still waits for; null if it may leave.
  const std::atomic<uint32_t>* start_flag() const noexcept;
  std::string_view name() const noexcept {
    return {reinterpret_cast<const char*>(bytes_.data()) + sizeof(HeaderFramePrefix), name_num_bytes_};
  }

  // Start of the values, once sealed: for fixed-size values that are known only when the message leaves.
  std::byte* values_begin() noexcept { return bytes_.data() + sizeof(HeaderFramePrefix) + name_num_bytes_; }

  // Once sealed: kInvalidArgument if a limit was exceeded (header_frame.hpp).
  const Status& fits() const noexcept { return fits_; }

  // Sends a sealed or empty message. `header` is for the header frame; payload frames have the kind `payload_kind`.
  // Fails if the message cannot leave or is too large. Later failures are reported through the peer's state. Progress
  // owner only.
  Status send(messaging::Messenger& messenger, transport::PeerId peer, const transport::CallHeader& header,
              transport::MessageKind payload_kind) noexcept;
  // Returns whether the transport uses none of its memory.
  bool at_rest() const noexcept { return num_moving_ == 0; }
  bool exposes() const noexcept {
    return std::ranges::any_of(payload_frames_, [](const PayloadFrame& frame) { return frame.is_exposed; });
  }
  // The transport is gone, so that no transfer is running.
  void come_to_rest() noexcept { num_moving_ = 0; }

  // Returns whether it references memory of others, or a flag.
  bool has_owners() const noexcept { return !payload_frames_.empty() || !start_flags_.empty(); }
  // Releases what it references or owns; only at rest.
  void clear() noexcept;

 private:
  struct Tensor {
    Tensor() noexcept {}  // members that are not set stay uninitialised

    TensorDescriptor descriptor;
    size_t shape_offset;
    ConstBuffer data;
    Owner owner;
    MemoryHandle memory_handle;  // of an exposed tensor
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
