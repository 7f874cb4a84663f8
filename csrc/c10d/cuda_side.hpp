// Runs a backend's operations on CUDA tensors: chooses their streams and their paths.
//
// An operation runs as a kernel if the group's GPUs have peer access and a kernel exists for it
// (gpu_comm/device_group.hpp). Otherwise it goes through pinned memory and the host engine (gpu_comm/relay/relay.hpp).
// All ranks choose the same path, and neither path blocks the host.
//
//    synchronous collectives    on the current stream
//    asynchronous collectives   on a stream of the group, which waits for the current one
//    sends and receives         on one stream per peer, direction and path, and through the host per tag: a kernel that
//                               waits for its peer delays neither other peers nor messages that may come before it
//
// All of this can be captured into CUDA graphs. What goes through the host is then started by each launch of the graph
// (engine/replays.hpp).
//
// Ownership: a backend owns one CudaSide, from its first CUDA tensor on. Any thread may enqueue.
// This file uses only the generic interface of torch's streams, so that the extension needs no CUDA library of torch.
// In builds without CUDA, the constructor of CudaSide throws (without_cuda/).
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/interruptible_mutex.hpp"
#include "c10d/group_streams.hpp"
#include "c10d/work.hpp"
#include "engine/communicator.hpp"

namespace axon::cuda {
class Event;
}  // namespace axon::cuda
namespace axon::gpu_comm {
class CapturedSlots;
class DeviceGroup;
class ExpiredWait;
class RelayPlan;
class Workspace;
struct StreamBarrier;
}  // namespace axon::gpu_comm

namespace axon::c10d_backend {

struct GpuPath {
  bool by_kernels = false;     // otherwise through host memory
  std::string obstacle;        // why not, as far as this rank can tell; the peer may know more
  uint64_t num_zero_copy = 0;  // messages from and to this rank that moved directly from tensor to tensor
};

// Returns whether the event has completed. Also works during capture.
bool has_passed(const c10::Event& event);

bool is_capturing(c10::Stream stream);

// Frees the arenas of this process that no group uses any more.
void give_back_arenas() noexcept;

// Returns the name of the kernel that serves this operation on float32 tensors, or an empty text if they go through
// host memory. It assumes ranks of one host whose GPUs can access each other, and large slices of their arenas.
std::string_view typical_kernel(transport::OperationKind kind, int num_ranks, size_t num_bytes,
                                const collectives::AlgorithmOverrides& overrides);

// More than 30 methods: seven of them serve the schedules of fused/, which move data themselves, and five prepared
// transfers.
class CudaSide {
 public:
  // Called at the group's first CUDA tensor. Throws if the device cannot be used. `round` is the number of earlier
  // CudaSides of the group.
  CudaSide(std::shared_ptr<engine::Communicator> communicator, at::Device device, std::chrono::milliseconds timeout,
           uint32_t round);
  // Drains first.
  ~CudaSide();

  at::Device device() const noexcept { return device_; }
  uint64_t num_launched() const noexcept { return num_launched_.load(std::memory_order_relaxed); }
  // The number of launched operations that used zero-copy so far. Throws if the device cannot be queried.
  uint64_t num_zero_copy() const;

  // GPU memory of the group, in bytes.
  struct Memory {
    uint64_t arena = 0;  // shared by the groups of this process
    uint64_t slice = 0;  // this group's slice of the arena
    uint64_t workspaces = 0;
  };
  Memory memory();

  // Returns how messages move between this rank's GPU and the peer's. Waits until the peer has used its GPU.
  GpuPath path_to(int peer);

  enum class Timing : uint8_t { kSynchronous, kAsynchronous };

  // Returns the name of the kernel that serves this operation on float32 tensors of all ranks; empty if they go through
  // host memory, and before the first collective.
  std::string_view kernel_for(transport::OperationKind kind, size_t num_bytes) const;

  // Enqueues all operations of the work, whose timeouts are set. Throws if the group is broken, and during capture if
  // an operation cannot be captured: a receive from any rank.
  void enqueue(AxonWork& work, Timing timing);

  // Methods for schedules that move data themselves, concurrently with the current stream (fused/).

  // Returns memory of at least this size on all ranks, or null if there is none. The result is the same on all ranks.
  // All ranks call this in the order of their collectives. Blocks the host while the memory is allocated or grown.
  const gpu_comm::Workspace* workspace(size_t num_bytes, std::chrono::milliseconds timeout);
  // The stream of asynchronous collectives, and of the signals that this rank sends.
  c10::Stream side_stream() const noexcept { return streams_.own(); }
  // The stream that waits for signals from peers.
  c10::Stream awaiting_stream();
  // Makes later work of `later` wait for all present work of `earlier`.
  void order(c10::Stream earlier, c10::Stream later);
  // Enqueues a barrier of all ranks' streams. Throws if the group is broken.
  void enqueue_barrier(const gpu_comm::StreamBarrier& barrier, c10::Stream stream);
  // Enqueue Arrivals::tell() on the side stream and Arrivals::await() on the awaiting stream, each following a barrier.
  void tell(const gpu_comm::Workspace& workspace, int peer, int tile);
  void await(const gpu_comm::Workspace& workspace, int tile);
  // Aborts the group: a schedule has failed with its communication half done.
  void give_up() noexcept;

  // Methods for prepared transfers (c10d/prepared_transfer.hpp).

  // Differs from that of all other CudaSides of this process.
  uint64_t serial() const noexcept { return serial_; }
  // Returns whether kernels here and at the peer can access each other's GPU. Waits until the peer has used its GPU.
  bool has_link(int peer);
  gpu_comm::DeviceGroup& device_group() noexcept { return *group_; }
  // Returns the current stream, on which the caller is about to enqueue work. Throws if the group is broken.
  c10::Stream begin_step();
  // The stream is captured, and holds a call that the engine takes part in: its launches wake the engine.
  void note_captured(c10::Stream stream);

  // Blocks the host until all enqueued work is done. If a signal's handler raises meanwhile, this aborts the group to
  // end the wait soon, and keeps the exception (python/signals.hpp).
  void drain() noexcept;
  // The same, but throws that exception, or the failure of enqueued work.
  void finish();

  // The stream of the caller's next kernels. Throws for cudaStreamPerThread, which other threads cannot wait for.
  c10::Stream current_stream() const;

  // Starts the host operation when the current stream reaches this point. Throws if the group is broken, and during
  // capture.
  void start_after_current_stream(WorkOperation& operation);

 private:
  // The operations of a call by path.
  struct Ways {
    OperationList alone;     // in a group of one
    OperationList launched;  // as kernels
    OperationList relayed;   // through the host
  };

  struct Relaying {
    WorkOperation& operation;
    c10::Stream stream;
  };

  // The error says that `caller`, if given, can no longer run.
  void check_health(const WorkOperation* caller = nullptr);
  void note_fault();
  void put_in_order(c10::Stream earlier, c10::Stream later);
  void drain(c10::Stream stream);
  c10::Stream stream_for(const Ways& ways, c10::Stream of_collectives, bool captured);
  Ways choose(const OperationList& operations, bool captured, std::unique_lock<std::mutex>& lock);
  bool is_alone(const WorkOperation& operation) const;
  bool has_kernel(const WorkOperation& operation, std::unique_lock<std::mutex>& lock);
  bool goes_in_columns(const WorkOperation& operation, std::unique_lock<std::mutex>& lock);
  void enqueue_operations(const Ways& ways, const AxonWork::StreamPosition& position, c10::Stream current);
  void enqueue_in_turn(std::vector<Relaying> unfinished);
  void launch(const OperationList& operations, const AxonWork::StreamPosition& position);
  void check_results(const OperationList& operations, c10::Stream stream);
  std::unique_ptr<gpu_comm::RelayPlan> plan_of(const WorkOperation& operation);
  void open_relay(WorkOperation& operation);
  void capture_relay(WorkOperation& operation, c10::Stream stream, bool is_single);
  c10::Stream stream_of_relay(const WorkOperation& operation, const AxonWork::StreamPosition& of_call);
  // Returns the number of the capture.
  uint64_t wake_engine_at_launch(c10::Stream capturing);

  const std::shared_ptr<engine::Communicator> communicator_;
  const at::Device device_;
  const uint64_t serial_;
  InterruptibleMutex making_;                  // held while a workspace is made; taken before mutex_
  std::mutex mutex_;                           // orders calls of several threads; never held while waiting for peers
  std::unique_ptr<const cuda::Event> passed_;  // of put_in_order(); re-recorded for each wait
  std::shared_ptr<const gpu_comm::ExpiredWait> expired_wait_;
  std::unique_ptr<gpu_comm::CapturedSlots> captured_slots_;
  // The latest captures that hold calls through the host, the last one first.
  struct Capture {
    uint64_t id = 0;
    bool can_wake = false;                   // whether its graph can hold nodes that wake the engine
    std::set<const void*> waking_streams{};  // those with such a node
  };
  std::list<Capture> captures_;
  GroupStreams streams_;
  std::unique_ptr<gpu_comm::DeviceGroup> group_;
  std::vector<std::unique_ptr<gpu_comm::Workspace>>
      workspaces_;               // the last one is in use; kernels may still use the smaller ones
  size_t most_workspace_bytes_;  // larger ones could not be allocated
  const std::shared_ptr<LateFailure> late_failure_ = std::make_shared<LateFailure>();
  std::atomic<uint64_t> num_launched_{0};  // relaxed: a statistic
};

}  // namespace axon::c10d_backend
