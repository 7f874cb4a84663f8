// One end of a prepared transfer of a CUDA tensor to (or from) another GPU, for torch_axon/prepared.
//
// Each rank makes its end and sends its address() to the peer, then calls open() with the peer's, if the GPUs of the
// two have peer access (AxonBackend::has_peer_access). From then on every step is one kernel in the order of the
// current stream, which may be captured. No other operation of the group is ordered with it. Otherwise
// open_through_host() takes the place of open(), whatever the peer does: partitions pass through host memory.
//
// Calls out of order throw at once if the host knows all steps. It does not once a graph or a kernel of the user takes
// some; then the kernels report such calls, and the group fails.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "c10d/backend.hpp"

namespace axon::c10d_backend {

// Thread-safe.
class PreparedTransfer {
 public:
  struct Wish {
    bool is_sender = false;
    int peer = -1;
    uint32_t tag = 0;
    uint32_t num_partitions = 0;  // divides the tensor's elements; 0: the whole tensor, sent by start()
    std::chrono::milliseconds timeout{0};
  };
  // The tensor must be contiguous, and the current stream not under capture. `record` is memory on its GPU for what the
  // two ends tell each other, of at least record_bytes(), zeroed. It must stay allocated as long as the peer's end may
  // take a step.
  PreparedTransfer(c10::intrusive_ptr<AxonBackend> backend, at::Tensor tensor, at::Tensor record, const Wish& wish);
  ~PreparedTransfer();
  // No step may follow.
  void close() noexcept;
  // Returns whether it is closed, and no step is queued any more.
  bool has_ended() const;

  // Empty if no other GPU can map the tensor.
  const std::string& address() const noexcept { return address_; }
  void open(const std::string& address_of_peer);
  // The partitions are messages under the reserved tags from this one on.
  void open_through_host(uint32_t first_tag);
  static uint32_t most_host_partitions() noexcept;

  void start();
  // Steps of the partitions from `first` to `end` − 1.
  void ready(uint32_t first, uint32_t end);
  void arrived(uint32_t first, uint32_t end);
  void wait();

  // Adds a step ("start", "ready", "arrived" or "wait") to a cudaGraph_t, after these nodes of it. Returns the node.
  uintptr_t add_to(uintptr_t graph, const std::vector<uintptr_t>& dependencies, const std::string& step, uint32_t first,
                   uint32_t end);
  // The address of the axon::PreparedTransfer of kernels/device.cuh.
  uintptr_t device_handle();

  // A stream of a device for the memory of records. Nothing that waits for a peer runs on it.
  static uintptr_t memory_stream(int device);
  static size_t record_bytes(size_t tensor_bytes, uint32_t num_partitions) noexcept;

 private:
  enum class Step : uint8_t { kStart, kReady, kArrived, kWait };  // as gpu_comm::PartitionedTransfer::Step

  void enqueue(Step step, uint32_t first = 0, uint32_t end = 0);
  void note(Step step, uint32_t first, uint32_t end);
  void check_open() const;
  [[noreturn]] void refuse(const std::string& what, const std::string& allowed) const;
  CudaSide& side() const;

  struct Cuda;  // what needs CUDA's headers

  const c10::intrusive_ptr<AxonBackend> backend_;
  const at::Tensor tensor_;
  const at::Tensor record_;
  const Wish wish_;
  const uint64_t cuda_side_;  // the serial number of the group's
  std::string address_;
  mutable std::mutex mutex_;  // guards the members below
  std::unique_ptr<Cuda> cuda_;
  bool host_takes_all_steps_ = true;
  bool is_started_ = false;
  std::vector<bool> is_ready_;  // by partition
};

}  // namespace axon::c10d_backend
