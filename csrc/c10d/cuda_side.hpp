// A backend's operations on CUDA tensors: on which stream they run, and by which way.
//
// By a kernel where the GPUs of the group reach each other and there is one for the operation
// (gpu_comm/device_group.hpp), else through pinned memory and the host engine (gpu_comm/staging.hpp). All ranks decide
// alike; neither blocks the host.
//
//   synchronous collectives    on the current stream
//   asynchronous collectives   on a stream of the group's, which waits for the current one
//   sends and receives         on a stream for each peer, direction and way: a kernel that waits for its peer holds up
//                              neither other peers nor messages that may be received before it
//
// Knows torch's streams by their generic interface only, so that the extension needs no CUDA library of torch's. A
// build without CUDA has a CudaSide too (without_cuda/), whose constructor throws.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/interruptible_mutex.hpp"
#include "c10d/work.hpp"
#include "engine/communicator.hpp"

namespace axon::cuda {
class Event;
}  // namespace axon::cuda
namespace axon::gpu_comm {
class DeviceGroup;
class Workspace;
struct StreamBarrier;
}  // namespace axon::gpu_comm

namespace axon::c10d_backend {

struct GpuPath {
  bool by_kernels = false;     // else through host memory
  std::string obstacle;        // why not, as far as this rank can tell: the peer may know
  uint64_t num_zero_copy = 0;  // messages of this rank, to and from any, that went straight from tensor to tensor
};

class CudaSide {
 public:
  // At the group's first CUDA tensor. Throws when the device cannot be used. `round`: how many sides the group has had
  // before.
  CudaSide(std::shared_ptr<engine::Communicator> communicator, at::Device device, std::chrono::milliseconds timeout,
           uint32_t round);
  // Drains first.
  ~CudaSide();

  at::Device device() const noexcept { return device_; }
  uint64_t num_launched() const noexcept { return num_launched_.load(std::memory_order_relaxed); }
  // Of those, the ones that the device has done directly so far. Throws when the device cannot be asked.
  uint64_t num_zero_copy() const;

  // What the group holds of the GPU, in bytes.
  struct Memory {
    uint64_t arena = 0;  // shared by the groups of this process
    uint64_t slice = 0;  // of the arena, this group's own
    uint64_t workspaces = 0;
  };
  Memory memory();

  // How messages between this rank's GPU and that of the peer move. Waits until the peer has used its own.
  GpuPath path_to(int peer);

  enum class Timing : uint8_t { kSynchronous, kAsynchronous };

  // Enqueues all operations of the work, whose timeouts are set. Throws if the group is broken, and in a capture what
  // cannot be captured.
  void enqueue(AxonWork& work, Timing timing);

  // For schedules that move data themselves, beside what the current stream does (fused/):
  // Memory of all ranks for it, at least so large, or null where they are to do without: alike on all ranks, which call
  // it in the order of their collectives. Blocks the host when it is made, or made larger.
  const gpu_comm::Workspace* workspace(size_t num_bytes, std::chrono::milliseconds timeout);
  // Where asynchronous collectives run, and where what is told is sent.
  c10::Stream side_stream() const noexcept { return own_stream_; }
  // Where what peers tell is awaited.
  c10::Stream awaiting_stream();
  // Work of `later` from here on waits for all that `earlier` has now.
  void order(c10::Stream earlier, c10::Stream later);
  // A barrier of all ranks' streams. Throws if the group is broken.
  void enqueue_barrier(const gpu_comm::StreamBarrier& barrier, c10::Stream stream);
  // On the side stream and on the awaiting one, behind a barrier: Arrivals::tell(), await().
  void tell(const gpu_comm::Workspace& workspace, int peer, int tile);
  void await(const gpu_comm::Workspace& workspace, int tile);
  // A schedule has failed with its communication half done.
  void give_up() noexcept;

  // Also while somebody captures.
  static bool has_passed(const c10::Event& event);

  // The arenas of this process that no group uses any more.
  static void give_back_arenas() noexcept;

  // Blocks the host until all that has been enqueued is done. What a signal's handler raises meanwhile aborts the
  // group, so that it is done soon, and is kept (python/signals.hpp).
  void drain() noexcept;
  // The same, and throws that, or what has gone wrong with what was enqueued.
  void finish();

  // Where the caller's next kernels go. Throws where nobody but this thread could follow them: cudaStreamPerThread.
  c10::Stream current_stream() const;

  // The host operation starts when the current stream has come this far. Throws if the group is broken, and
  // in a capture.
  void start_after_current_stream(WorkOperation& operation);

 private:
  enum class Way : uint8_t { kKernel, kHost };
  using Link = std::tuple<int, engine::Direction, Way>;

  // The operations of a call by the way they take.
  struct Ways {
    OperationList alone;     // in a group of one
    OperationList launched;  // as kernels
    OperationList staged;    // through the host
  };

  // The error says that `caller`, if any, cannot be made any more.
  void check_health(const WorkOperation* caller = nullptr);
  void note_fault();
  void put_in_order(c10::Stream earlier, c10::Stream later);
  static void clear_in_flight_works() noexcept;
  std::vector<c10::Stream> used_streams();
  void drain(c10::Stream stream);
  c10::Stream stream_for(const Ways& ways, c10::Stream of_collectives);
  c10::Stream stream_of(const WorkOperation& message, Way way);
  void note_use(c10::Stream stream);
  Ways choose(const OperationList& operations, bool captured, std::unique_lock<std::mutex>& lock);
  bool is_alone(const WorkOperation& operation) const;
  bool has_kernel(const WorkOperation& operation, std::unique_lock<std::mutex>& lock);
  void enqueue_operations(const Ways& ways, const AxonWork::StreamPosition& position);
  void launch(const OperationList& operations, const AxonWork::StreamPosition& position);
  void stage(WorkOperation& operation, c10::Stream stream);
  void enqueue_start_flag(WorkOperation& operation, c10::Stream stream);

  const std::shared_ptr<engine::Communicator> communicator_;
  const at::Device device_;
  const c10::Stream own_stream_;
  InterruptibleMutex making_;  // held while a workspace is made; taken before mutex_
  std::mutex mutex_;           // calls of several threads are put in one order; no wait for peers holds it
  std::unique_ptr<const cuda::Event> passed_;  // of put_in_order(): a wait is for what was recorded before it
  std::map<Link, c10::Stream> link_streams_;
  std::vector<c10::Stream> used_streams_;       // each once
  std::optional<c10::Stream> awaiting_stream_;  // made at first use: torch has few
  std::unique_ptr<gpu_comm::DeviceGroup> group_;
  std::vector<std::unique_ptr<gpu_comm::Workspace>>
      workspaces_;               // the last one is used; the smaller ones may be, still
  size_t most_workspace_bytes_;  // larger ones are not to be had
  const std::shared_ptr<LateFailure> late_failure_ = std::make_shared<LateFailure>();
  std::atomic<uint64_t> num_launched_{0};  // relaxed: a statistic
};

}  // namespace axon::c10d_backend
