// One end of a message in partitions that is sent again and again. Its partitions lie in host memory, which a device
// fills and drains. Each is a message of its own, under a tag of its own, so the other end may be any sends or
// receives.
//
//   auto message = PartitionedMessage::open(communicator, specification, memory);   // registers its trigger
//   message->start();      // any thread: a start that is not part of a graph; kernels start it by the trigger
//   message->release();    // any thread: no start follows
//
// Starts are counted from 1, here and on the device, and 0 is left out when the count wraps. Flags hold the count of
// their start:
//
//            sender                                              receiver
//   flags    [p] by the device: partition p is in the memory     [p] by the engine: partition p is in the memory
//   turn     by the engine: the memory is free for this start    by the device: it has drained this start
//
// One start runs at a time. The first failure of a partition fails the group, which ends the waits of its kernels.
//
// Kept by the engine's replays until it is released and what runs has ended, and by itself while something runs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/communicator.hpp"
#include "engine/triggered.hpp"

namespace axon::engine {

class PartitionedMessage final : public Triggered,
                                 public std::enable_shared_from_this<PartitionedMessage>,
                                 private FlagWaiter,
                                 private Submission {
 public:
  struct Specification {
    uint32_t trigger_id = 0;
    bool is_sender = false;
    int peer = -1;
    uint32_t first_tag = 0;  // of partition 0; those of the others follow
    DataType dtype{};
    size_t partition_bytes = 0;
    size_t num_partitions = 0;
    std::chrono::milliseconds timeout{0};  // of each partition's message, from its begin
    std::string name;                      // "prepared send to rank 1, tag 0", for errors
  };

  // Shared with a device. All words are 0 at first, but for the sender's turn, which is 1.
  struct Memory {
    std::byte* data = nullptr;
    // One per partition. The device sets one more to the count of a start that is not to be completed: the request is
    // closed, and no partition becomes ready any more.
    std::span<std::atomic<uint32_t>> flags;
    std::atomic<uint32_t>* turn = nullptr;
    std::atomic<uint32_t>* has_failed = nullptr;  // set to 1 by the engine once a start has failed
    std::shared_ptr<void> owner;                  // of the memory; shared with the device's side
  };

  // Fails in a forked child.
  static Result<std::shared_ptr<PartitionedMessage>> open(Communicator& communicator, Specification specification,
                                                          Memory memory);
  ~PartitionedMessage();
  PartitionedMessage(const PartitionedMessage&) = delete;
  PartitionedMessage& operator=(const PartitionedMessage&) = delete;

  Status start();
  void release() noexcept;
  // The same, and no device takes part any more: a start that waits for one ends.
  void give_up() noexcept;

  uint32_t trigger_id() const noexcept override { return specification_.trigger_id; }
  void trigger() noexcept override;
  void fail() noexcept override;

  // The counts of starts.
  static constexpr uint32_t next(uint32_t count) noexcept { return count + 1 == 0 ? 1 : count + 1; }

 private:
  // The message of one partition.
  class Run final : public Operation {
   public:
    Run(PartitionedMessage& message, size_t partition) noexcept : message_(message), partition_(partition) {}
    ~Run() override = default;

    ConstBuffer input;
    Buffer output;

   private:
    void on_finished() noexcept override { message_.on_finished(*this, partition_); }
    void on_released() noexcept override { message_.on_released(); }

    PartitionedMessage& message_;
    const size_t partition_;
  };

  PartitionedMessage(std::shared_ptr<Group> group, Specification specification, Memory memory);

  bool keep_submitted() noexcept;
  void submit() noexcept;
  void submit_elsewhere() noexcept;  // the calling thread does not go on with it
  void end_device() noexcept;
  void advance() noexcept;
  void retire() noexcept;
  void begin_start() noexcept;
  void await_device() noexcept;
  void send_ready() noexcept;
  void begin_partition(size_t partition) noexcept;
  void drop(size_t num_partitions) noexcept;
  void tell_group() noexcept;
  size_t num_partitions() const noexcept { return specification_.num_partitions; }

  // Any thread that drives.
  void on_finished(const Operation& operation, size_t partition) noexcept;
  void on_released() noexcept;
  void note_failure(const Operation& operation, size_t partition) noexcept;

  void on_flag_set() noexcept override;  // FlagWaiter
  void begin() noexcept override;        // Submission
  void complete() noexcept override {}

  const std::shared_ptr<Group> group_;  // shared with its communicator and the engine
  const Specification specification_;
  const Memory memory_;
  std::vector<std::optional<Run>> runs_;  // by partition

  // Sequentially consistent, all of them. A thread that sets one submits this object, and the progress owner looks at
  // all.
  std::atomic<bool> is_submitted_{false};
  std::atomic<uint32_t> num_started_{0};
  std::atomic<size_t> num_left_{0};  // partitions of the present start whose messages are not released
  std::atomic<bool> has_run_{false};
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> knows_failure_{false};  // after failure_ is written
  std::atomic<bool> is_released_{false};
  Status failure_;
  std::shared_ptr<PartitionedMessage> submitted_;  // while it is submitted

  // Progress owner only.
  std::shared_ptr<PartitionedMessage> self_;  // while a start runs
  uint32_t num_begun_ = 0;
  uint32_t former_ = 0;      // the count of the start before
  uint32_t count_ = 0;       // of the present start; also read by the threads that complete its messages
  size_t num_unposted_ = 0;  // partitions of the present start without a message yet
  bool has_told_group_ = false;
};

}  // namespace axon::engine
