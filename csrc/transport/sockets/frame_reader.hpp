// Cuts the bytes of one rail into frames. One system call may bring many frames, which are handled where they lie. The
// payload of DATA goes to its place, directly if the place is known before the bytes are read.
//
//   const auto parts = reader.prepare(scratch);            // for recvmsg(2)
//   if (!reader.consume(num_read, scratch, handler)) …     // bytes that no transport of ours sends
//
// Holds at most one incomplete frame, in memory from `pool`. Not thread-safe.
#pragma once

#include <sys/uio.h>

#include <array>
#include <span>

#include "base/size_class_pool.hpp"
#include "transport/sockets/frame.hpp"

namespace axon::transport {

class FrameReader {
 public:
  class Handler {
   public:
    // Takes a whole frame other than DATA. The payload is valid during the call. False: it is invalid.
    virtual bool on_frame(const FrameHeader& header, std::span<const std::byte> payload) noexcept = 0;
    // Returns the memory for a DATA frame's payload, which stays valid until on_placed(); null: the frame is invalid.
    virtual std::byte* place(const FrameHeader& header) noexcept = 0;
    virtual bool on_placed(const FrameHeader& header) noexcept = 0;
    // Returns whether to stop: the rail was closed by one of the other calls.
    virtual bool is_closed() const noexcept = 0;

   protected:
    ~Handler() = default;
  };

  explicit FrameReader(SizeClassPool& pool) noexcept : pool_(pool) {}
  ~FrameReader() { release(); }
  FrameReader(const FrameReader&) = delete;
  FrameReader& operator=(const FrameReader&) = delete;

  // Returns where the next bytes are to be written, in order.
  std::array<iovec, 2> prepare(std::span<std::byte> scratch) noexcept;
  // The first `num_bytes` of what prepare() returned have been written. `scratch` must be the same.
  bool consume(size_t num_bytes, std::span<const std::byte> scratch, Handler& handler) noexcept;

 private:
  size_t num_missing() const noexcept;
  bool cut(std::span<const std::byte>& bytes, Handler& handler) noexcept;
  bool begin(std::span<const std::byte>& bytes, Handler& handler) noexcept;
  bool finish(std::span<const std::byte> payload, Handler& handler) noexcept;
  void release() noexcept;

  SizeClassPool& pool_;
  FrameHeader header_;
  size_t num_header_bytes_ = 0;   // of the current frame, that are here
  std::byte* payload_ = nullptr;  // where its payload goes: memory of the pool, or the place of DATA
  size_t num_payload_bytes_ = 0;  // that are here
};

}  // namespace axon::transport
