// Control messages between the GPU sides of a group, sent through the host engine: operations that no user has called.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/selector.hpp"
#include "engine/operation.hpp"
#include "ipc/device_address.hpp"

namespace axon::gpu_comm {

// An operation that belongs to a holder. The holder is kept alive until the engine has released the operation.
class HeldOperation : public engine::Operation {
 public:
  // Call this before the operation starts. The operation shares the holder with the group that uses it, until
  // on_released().
  void keep_alive(std::shared_ptr<void> holder) noexcept { holder_ = std::move(holder); }

 protected:
  ~HeldOperation() override = default;

 private:
  void on_released() noexcept final;

  std::shared_ptr<void> holder_;
};

// A collective that returns the minimum of all ranks' values.
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

// Users cannot use this tag. Each round in which a group forms its GPU side has its own tag, so a control message that
// was not read in its round is never read.
constexpr uint32_t tag_of(Subject subject, uint32_t round) noexcept {
  return 0x8000'0000 | round << 1 | static_cast<uint32_t>(subject);
}

// A point-to-point message, at most as long as an address and what follows it.
class ControlMessage final : public HeldOperation {
 public:
  static constexpr size_t kMostBytes = ipc::DeviceAddress::kNumBytes + sizeof(collectives::AlgorithmOverrides::Kernels);

  class Reader {
   public:
    // Called when the control message has arrived, or has failed (its status says so). Runs on the thread that drives
    // the engine, and may start other operations.
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

  std::array<std::byte, kMostBytes> content_{};
  size_t num_bytes_ = 0;
  ConstBuffer input_;
  Buffer output_;
  Reader* reader_ = nullptr;
};

}  // namespace axon::gpu_comm
