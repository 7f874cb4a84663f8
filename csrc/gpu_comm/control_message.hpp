// What the GPU sides of a group tell each other through the host engine: operations that no user has called.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/operation.hpp"
#include "ipc/device_address.hpp"

namespace axon::gpu_comm {

// Belongs to a holder, which is kept alive until the engine has let go of the operation.
class HeldOperation : public engine::Operation {
 public:
  // Before it starts; a holder beside the group that uses it, until on_released().
  void keep_alive(std::shared_ptr<void> holder) noexcept { holder_ = std::move(holder); }

 protected:
  ~HeldOperation() override = default;

 private:
  void on_released() noexcept final;

  std::shared_ptr<void> holder_;
};

// The least of all ranks' values, a collective.
class MinimumVote final : public HeldOperation {
 public:
  ~MinimumVote() override = default;
  void cast(uint8_t value, std::chrono::milliseconds longest);
  uint8_t outcome() const noexcept { return value_; }

 private:
  uint8_t value_ = 0;
  Buffer buffer_;
};

enum class Subject : uint32_t { kAddress = 0, kAccess = 1 };

// The tag is one that no user's reaches. In each round in which a group forms its GPU side it is another one: a control
// message that nobody has read in its round is never read.
constexpr uint32_t tag_of(Subject subject, uint32_t round) noexcept {
  return 0x8000'0000 | round << 1 | static_cast<uint32_t>(subject);
}

// A point-to-point message, of at most an address's length.
class ControlMessage final : public HeldOperation {
 public:
  class Reader {
   public:
    // The control message has come, or never will (its status). On whichever thread drives; may start other operations.
    virtual void on_control_message(ControlMessage& message) noexcept = 0;

   protected:
    ~Reader() = default;
  };

  ~ControlMessage() override = default;
  void prepare_send(int rank, uint32_t tag, std::span<const std::byte> content);
  void prepare_receive(int rank, uint32_t tag, size_t num_bytes, Reader& reader);

  Subject subject() const noexcept { return static_cast<Subject>(tag & 1); }
  std::span<const std::byte> content() const noexcept { return {content_.data(), num_bytes_}; }

 private:
  void describe(int rank, uint32_t message_tag, size_t num_bytes);
  void on_finished() noexcept override;

  std::array<std::byte, ipc::DeviceAddress::kNumBytes> content_{};
  size_t num_bytes_ = 0;
  ConstBuffer input_;
  Buffer output_;
  Reader* reader_ = nullptr;
};

}  // namespace axon::gpu_comm
