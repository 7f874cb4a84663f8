// Owns a UCP context and its one worker, from configuration to address, and destroys them in the right order. The
// progress owner uses it, one thread at a time.
//
//   Result<UcxWorker> worker = UcxWorker::open(options, extension);
//   ucx->ucp_worker_progress(worker.value().get());
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/inheritance.hpp"
#include "base/status.hpp"
#include "transport/ucx/ucx_context.hpp"
#include "transport/ucx/ucx_library.hpp"

namespace axon::transport {

// The content of a worker's address(): UCX's address with all its devices, UCX's address with network devices only, and
// the length of the latter. Shared memory may reach a process whose end this process cannot observe, for instance one
// in another network namespace.
struct UcxAddresses {
  std::span<const std::byte> all;
  std::span<const std::byte> network;

  // Returns views of `packed`, which another process has sent.
  static Result<UcxAddresses> unpack(std::span<const std::byte> packed);
};

class UcxWorker {
 public:
  static Result<UcxWorker> open(const UcxOptions& options, RequestExtension extension);

  ucp_worker_h get() const noexcept { return worker_.get(); }
  std::span<const std::byte> address() const noexcept { return address_; }
  // Becomes readable after ucp_worker_arm(); owned by the worker.
  int event_fd() const noexcept { return event_fd_; }
  // UCX opens its descriptors without close-on-exec. Sets it for descriptors of connections made or accepted since.
  void close_on_exec() const noexcept;

 private:
  struct Destroy {
    void operator()(ucp_worker_h worker) const noexcept { ucx->ucp_worker_destroy(worker); }
  };

  Status create_worker();
  Status append_address(uint32_t flags);
  Status query();
  void withhold_sockets(std::span<const int> sets_before);

  UcxContext context_;
  std::unique_ptr<ucp_worker, Destroy> worker_;
  std::vector<std::byte> address_;
  int event_fd_ = -1;
  int watched_set_ = -1;  // UCX's epoll set of all descriptors that its own thread watches; −1 without such a thread
  WithheldFromForks sockets_;
};

}  // namespace axon::transport
