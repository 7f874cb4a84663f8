// One transfer between this process's memory and that of a peer: a read, a write, a notification, or the opening of a
// handle.
//
// Ownership: reference-counted; the engine holds its own reference while it needs one. Threads: the caller fills it in
// and starts it; the private part belongs to the progress owner until the transfer is finished.
//
//   auto transfer = Counted<Transfer>::adopt(*new Transfer(Transfer::Kind::kRead, connection));
//   transfer->add(remote, offset, {local, num_bytes});
//   transfer->keep(std::move(owner_of_local));
//   start(*transfer);                                  // never blocks, see OneSided
//   if (wait(*transfer, deadline)) use(transfer->status());
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/data_type.hpp"
#include "engine/engine.hpp"
#include "memory/owner.hpp"
#include "rpc/core/call.hpp"
#include "rpc/core/one_sided/device_memory.hpp"
#include "rpc/core/one_sided/remote_memory.hpp"

namespace axon::rpc {

class Initiator;

struct AwaitsSlot;

class Transfer : public ListNode<Transfer>, public ListNode<Transfer, AwaitsSlot>, private engine::Submission {
 public:
  enum class Kind : uint8_t { kRead, kWrite, kNotify, kOpen };

  Transfer(Kind kind, std::shared_ptr<Connection> connection) noexcept
      : kind_(kind), connection_(std::move(connection)), continuation_(*this) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // The caller fills these in before the start.
  std::chrono::milliseconds timeout{30'000};
  std::optional<std::string> notification;  // delivered to the peer after the data
  EncodedHandle handle{};                   // of an opening
  DataType dtype = DataType::kByte;         // of all blocks: how slow links may compress them

  // Adds a block, which lies within the remote memory and has a byte or more. The local memory of a write is only read.
  void add(const std::shared_ptr<RemoteMemory>& remote, uint64_t offset, Buffer local);
  // Adds blocks that a device moves, with the number and the bytes of them.
  void add(std::unique_ptr<DeviceWork> work, size_t num_blocks, uint64_t num_bytes);
  // Notes remote memory whose blocks a device moves: it is checked, and kept, as that of other blocks.
  void use(const std::shared_ptr<RemoteMemory>& remote);
  // Makes room for this many blocks.
  void reserve(size_t num_blocks) { blocks_.reserve(blocks_.size() + num_blocks); }
  // Keeps local memory until the transfer is released.
  void keep(Owner owner) { owners_.push_back(std::move(owner)); }

  Kind kind() const noexcept { return kind_; }
  const std::shared_ptr<Connection>& connection() const noexcept { return connection_; }
  uint64_t num_bytes() const noexcept { return num_bytes_; }
  size_t num_blocks() const noexcept { return num_blocks_; }
  // Returns the name of the path of the first remote memory, as it is now.
  const char* path() const noexcept;
  // Final from finished() on.
  bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
  const sync::atomic<bool>& finished_flag() const noexcept { return finished_; }
  const Status& status() const noexcept { return finished() ? status_ : kUnderWay; }
  // The remote memory that an opening has opened.
  const std::shared_ptr<RemoteMemory>& opened() const noexcept { return opened_; }
  // Returns whether nothing moves to or from the local memory any more, so that it belongs to its owner again.
  bool released() const noexcept { return released_.load(std::memory_order_acquire); }
  // From the start until the first byte moved, and from then on until the end. Final from finished() on.
  sync::Clock::duration time_posted() const noexcept { return begun_at_ - created_at_; }
  sync::Clock::duration time_moved() const noexcept { return ended_at_ - begun_at_; }

  void retain() noexcept { num_references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (num_references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  // For OneSided, which has checked that the engine is this process's.
  void start_on(engine::Engine& engine) noexcept;
  // The same for the progress owner.
  void start_now() noexcept {
    retain();
    begin();
  }
  // Fails the transfer in place of starting it.
  void fail_unstarted(Status status) noexcept;

 protected:
  virtual ~Transfer() = default;

  // Called once by the thread that drives, without any lock. The status is given since finished() is not true yet.
  virtual void on_finished(const Status& /*status*/) noexcept {}

 private:
  friend class DeviceWork;
  friend class Initiator;
  friend class RequestSlots;

  struct Block {
    RemoteMemory* remote = nullptr;
    uint64_t offset = 0;   // in the remote memory
    uint64_t address = 0;  // at the owner, for direct copies
    Buffer local;
  };

  // Continues a transfer that copies directly.
  struct Continuation final : engine::Submission {
    explicit Continuation(Transfer& owner) noexcept : transfer(owner) {}
    Transfer& transfer;
    void begin() noexcept override;
    void complete() noexcept override {}
  };

  void begin() noexcept override;
  void complete() noexcept override;
  std::string description() const;

  const Kind kind_;
  const std::shared_ptr<Connection> connection_;  // shared with the runtime, which may be closed first
  std::vector<std::shared_ptr<RemoteMemory>> remotes_;
  std::vector<Block> blocks_;
  std::vector<Owner> owners_;
  std::vector<std::unique_ptr<DeviceWork>> device_works_;
  uint64_t num_bytes_ = 0;
  size_t num_blocks_ = 0;

  // Progress owner only.
  Continuation continuation_;
  std::shared_ptr<RemoteMemory> opened_;
  size_t next_ = 0;           // the first block that is not requested or copied completely
  size_t num_copied_ = 0;     // bytes of that block that have been copied
  size_t num_requests_ = 0;   // that have not been answered
  size_t num_sent_ = 0;       // requests that write, since the start
  size_t num_in_flight_ = 0;  // requests, and work of devices, that use local memory
  size_t num_device_works_left_ = 0;
  uint32_t id_ = 0;  // names it to the peer; 0: not needed
  bool is_begun_ = false;
  bool has_sent_control_ = false;  // its notification or opening has been sent
  bool is_notifying_ = false;      // it writes towards a notification
  bool is_continued_ = false;      // its continuation is queued
  bool is_advancing_ = false;
  bool is_given_up_ = false;  // cancelled before it was begun
  bool is_final_ = false;
  bool is_drained_ = false;
  sync::Clock::time_point created_at_ = sync::Clock::now();
  sync::Clock::time_point begun_at_{};
  sync::Clock::time_point ended_at_{};
  sync::Clock::time_point deadline_{};
  Status status_;
  inline static const Status kUnderWay{};
  sync::atomic<bool> finished_{false};
  sync::atomic<bool> released_{false};
  sync::atomic<uint32_t> num_references_{1};
};

}  // namespace axon::rpc
