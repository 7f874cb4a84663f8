// AxonBackend: the c10d backend. It turns c10d's calls into operations of the engine.
//
// One instance serves a group's tensors on all devices. A call checks its arguments, describes one or more operations
// in an AxonWork and starts them. With asyncOp == false it also drives them until they finish, and throws their
// failure.
// Thread rule: any thread, without the GIL. All ranks must call the collectives of one group in one order.
// This class overrides c10d's old virtual names, because c10d calls these in every version from 2.11 on.
#pragma once

#include <torch/version.h>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "c10d/abort_hooks.hpp"
#include "c10d/check.hpp"
#include "c10d/completion_hook.hpp"
#include "c10d/convert.hpp"
#include "c10d/cuda_side.hpp"
#include "c10d/ephemeral_timeouts.hpp"
#include "c10d/estimator.hpp"
#include "c10d/registered_memory.hpp"
#include "c10d/success_hooks.hpp"
#include "c10d/window.hpp"
#include "c10d/work.hpp"
#include "collectives/choices.hpp"
#include "engine/communicator.hpp"

namespace axon::c10d_backend {

struct MemberHandle;

// More than 30 methods: c10d::Backend declares 43 of them. The others build the operations of these calls, or offer
// what c10d has no method for.
class AxonBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options("axon", timeout) {}
    Options(const Options&) = default;
#ifdef C10D_BACKEND_HAS_RECONFIGURE  // since 2.14, options are cloned for groups made from groups
    c10::intrusive_ptr<c10d::Backend::Options> clone() const override { return c10::make_intrusive<Options>(*this); }
#endif
  };

  AxonBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, c10::intrusive_ptr<Options> options);
  ~AxonBackend() override;

  // Reductions
  WorkPtr allreduce(TensorList& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(TensorList& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr allreduce_sparse(TensorList& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(TensorList& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr reduce_scatter(TensorList& outputs, std::vector<TensorList>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::ReduceScatterOptions& options) override;

  // Movements
  WorkPtr broadcast(TensorList& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allgather(std::vector<TensorList>& outputs, TensorList& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(std::vector<TensorList>& outputs, TensorList& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(TensorList& outputs, TensorList& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<TensorList>& outputs, TensorList& inputs, const c10d::GatherOptions& options) override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE  // since 2.14
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
#endif
  WorkPtr scatter(TensorList& outputs, std::vector<TensorList>& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr alltoall(TensorList& outputs, TensorList& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;

  // Point to point
  WorkPtr send(TensorList& tensors, int destination, int tag) override;
  WorkPtr recv(TensorList& tensors, int source, int tag) override;
  WorkPtr recvAnysource(TensorList& tensors, int tag) override;

  // The engine's form of a tag that users cannot name: with the bit that no user's tag has, and one that control
  // messages do not set.
  static constexpr uint32_t reserved(uint32_t tag) noexcept { return 0xC000'0000 | tag; }
  // For prepared requests: messages under such tags.
  WorkPtr send_reserved(const at::Tensor& tensor, int destination, uint32_t tag, std::chrono::milliseconds timeout);
  WorkPtr recv_reserved(const at::Tensor& tensor, int source, uint32_t tag, std::chrono::milliseconds timeout);

  // Calls between the two form one Work, which starts at the end. The calls themselves return null, as with NCCL.
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  // Synchronisation
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // The group
  const std::string getBackendName() const override { return "axon"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}  // the count starts with the group on every rank
  uint64_t getSequenceNumberForGroup() override;
  c10d::ErrorType getError() override;
  // Returns a group of some of this one's ranks, or null on the other ranks. c10d calls split() and merge() once for
  // each device type, and gets the same backend for all of them.
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  // Returns a group of the ranks of several groups, all of which exchange their addresses through this store.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options, const int& rank,
                                          const int& size) override;
  // Returns a group without the excluded ranks, which need not be alive. All remaining ranks call this.
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                           const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  void abort() override;
  void shutdown() override;

  // Returns this process's handle for reconfigure() on any member, the same for the life of the group.
  std::string reconfigure_handle() const;
  // Gives the group other members, by their handles in the order of their new ranks, this process included. All of them
  // call it with the same arguments; returns once they have. `uuid` must be new. What is in flight on the CPU fails,
  // and what is enqueued on a GPU is waited for; no other call but abort() may run at the same time. Throws ValueError,
  // which changes nothing, and DistBackendError, after which the group can be reconfigured again: it names the members
  // that did not come, or have ended.
  WorkPtr reconfigure_as(int64_t uuid, const std::vector<std::string>& handles,
                         std::optional<std::chrono::milliseconds> timeout);
  // The number of times that it got other members. Requests and caches of an earlier membership do not count any more.
  uint64_t num_reconfigurations() const noexcept { return num_reconfigurations_.load(std::memory_order_relaxed); }
#ifdef C10D_BACKEND_HAS_HOOKS  // since 2.14
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override { abort_hooks_->add(id, std::move(hook)); }
  void unregisterAbortHook(int64_t id) override { abort_hooks_->remove(id); }
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout) override { ephemeral_timeouts_.add(timeout); }
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  bool supportsAbortHooks() const override { return true; }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override {
    success_hooks_->add(id, [hook = std::move(hook)](uint64_t key, std::optional<float> duration) {
      hook({.completionKey = key, .duration_ms = duration});
    });
  }
  void unregisterCompletionHook(int64_t id) override { success_hooks_->remove(id); }
#endif
#endif
#ifdef C10D_BACKEND_HAS_RECONFIGURE  // since 2.14
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return reconfigure_handle(); }
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;
#endif
#ifdef C10D_BACKEND_HAS_WINDOW  // since 2.14
  bool supportsWindow() const override { return true; }
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override {
    return make_window(*this, tensor);
  }
#endif

  // Times. The first of these calls starts the timing of calls; torch's hook receives the times of each.
  void enableCollectivesTiming() override;
  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  void waitForPendingWorks() override;
  // Between the two, calls do nothing. The second returns the estimated time of these calls in µs, based on the calls
  // timed so far. The result is negative if there was a call whose kind has not been timed. One thread calls both, and
  // no other thread makes calls meanwhile.
  bool supportsTimeEstimation() const override { return true; }
  void startTimeEstimate();
  float endTimeEstimate();

  // Waits for all enqueued work, then releases the group's GPU memory; the last group to do so releases the whole
  // arena. resume() lets the next operation on CUDA tensors allocate it again. Both are collectives, and no other call
  // may run at the same time. Operations on CPU tensors continue to work in between.
  void suspend();
  void resume();
  // Bytes of GPU memory: "arena", shared by the groups of this process; "block", this group's slice of it; and
  // "workspaces". All are 0 before the first CUDA tensor and while the group is suspended.
  std::unordered_map<std::string, uint64_t> getMemoryStats();

  // Registered memory. Python has `mem_allocator` as a property as well.
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return has_registered_memory(device); }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return allocate_registered(size, options);
  }

  // For schedules on this group (fused/).
  CudaSide& cuda_side(at::Device device);  // formed at the first call
  // Returns whether the group still has the GPU side with this serial number.
  bool has_cuda_side(uint64_t serial) const noexcept;
  std::chrono::milliseconds timeout() const noexcept { return timeout_.load(std::memory_order_relaxed); }
  bool is_coalescing() const noexcept { return coalesced_ != nullptr; }

  // The number of operations on CUDA tensors whose kernels accessed the peers' tensors directly, without a copy. Counts
  // from the last suspend(), or from the start.
  uint64_t num_zero_copy();

  // How tensors reach another rank of the group, for diagnostics.
  struct Path {
    engine::PeerPath host;
    std::optional<GpuPath> gpu;  // set once this rank has used a CUDA tensor; waits until the other has, too
  };
  Path path_to(int rank);

  // Returns whether kernels of this rank's device can access the GPU of another rank: both get the same answer. Waits
  // until the other has used its GPU in the group.
  bool has_peer_access(at::Device device, int rank);

  // An operation, and the algorithm and kernel that this group runs for it. The kernel is empty before the first
  // collective on CUDA tensors.
  struct Selected {
    transport::OperationKind kind;
    collectives::Choice choice;
  };
  // Returns one entry per operation. Sizes count as in collectives/selector.hpp.
  std::vector<Selected> selected(size_t num_bytes);

 private:
  enum class Suspension : uint8_t { kNone, kHalf, kWhole };
  struct Standing;

  // How a call runs.
  struct Mode {
    bool asynchronous;
    std::chrono::milliseconds timeout;
  };
  // A call's names, for its Work and for profilers.
  struct Call {
    c10d::OpType type;
    const char* title;  // "axon:all_reduce"
    const char* name() const noexcept { return title + 5; }
  };

  template <typename Options>
  static Mode mode_of(const Options& options) noexcept {
    return {.asynchronous = options.asyncOp, .timeout = options.timeout};
  }

  c10::intrusive_ptr<AxonWork> make_work(const Call& call, const TensorList& tensors) const;
  WorkOperation& add_operation(AxonWork& work, transport::OperationKind kind, const at::Tensor& representative) const;
  WorkPtr run(c10::intrusive_ptr<AxonWork> work, const Call& call, const Mode& mode);
  void start(AxonWork& work, const Mode& mode);
  void start_recorded(AxonWork& work, const Call& call, const Mode& mode);
  void note_times(AxonWork& work, const Call& call);
  CompletionHook& device_watch();
  WorkPtr estimate(c10::intrusive_ptr<AxonWork> work, const Mode& mode);
  WorkPtr point_to_point(const Call& call, const TensorList& tensors, engine::Direction direction, int peer,
                         uint32_t tag, std::chrono::milliseconds timeout = c10d::kUnsetTimeout);

  void add_all_reduce(AxonWork& work, const at::Tensor& tensor, const ReductionSpecification& reduction) const;
  void add_all_gather(AxonWork& work, const at::Tensor& input, const TensorList& outputs) const;
  void add_all_gather(AxonWork& work, const at::Tensor& input, const at::Tensor& output) const;
  void add_reduce_scatter(AxonWork& work, const at::Tensor& input, const at::Tensor& output,
                          const ReductionSpecification& reduction) const;
  c10::intrusive_ptr<c10d::Backend> make_once(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              c10::intrusive_ptr<Options> options);
  const Standing& standing() const;
  void leave_members();
  void take_over(std::unique_ptr<engine::Communicator> communicator, const std::vector<MemberHandle>& members);
  // For calls that may run beside reconfigure().
  std::shared_ptr<engine::Communicator> current_communicator() const {
    const std::lock_guard lock(communicator_mutex_);
    return communicator_;
  }
  WorkPtr await_members(int64_t uuid, const std::vector<MemberHandle>& members, uint64_t digest,
                        std::chrono::milliseconds timeout);
  at::Tensor sum_sparse(const at::Tensor& tensor, std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<Options> options_;
  const c10::intrusive_ptr<c10d::Store> store_;  // of this group, for the groups made from it
  const bool is_default_group_;
  mutable std::mutex communicator_mutex_;  // held while another one takes its place
  // Shared with running calls of Work::wait(), which may outlive the backend.
  std::shared_ptr<engine::Communicator> communicator_;
  std::atomic<std::chrono::milliseconds> timeout_;  // relaxed: a setting
  const bool refuses_nans_;
  c10::intrusive_ptr<AxonWork> coalesced_;  // between start and end of coalescing
  std::atomic<bool> is_timed_{false};       // relaxed: a setting
  Estimator estimator_;
  std::optional<double> estimate_;  // µs, while estimating; NaN: unknown
  std::unique_ptr<CompletionHook> owned_completion_hook_;
  std::atomic<CompletionHook*> completion_hook_{nullptr};  // released when it is made, acquired by users
  std::mutex split_mutex_;
  // The group that was last split off or merged, and its store; guarded by split_mutex_.
  c10::weak_intrusive_ptr<c10d::Backend> last_made_{c10::intrusive_ptr<c10d::Backend>()};
  c10::intrusive_ptr<c10d::Store> last_store_;
  EphemeralTimeouts ephemeral_timeouts_;
  const std::shared_ptr<AbortHooks> abort_hooks_ = std::make_shared<AbortHooks>();
  const std::shared_ptr<SuccessHooks> success_hooks_ = std::make_shared<SuccessHooks>();
  std::once_flag device_watch_made_;
  std::unique_ptr<CompletionHook> owned_device_watch_;  // reports calls on a device to success_hooks_
  std::atomic<CompletionHook*> device_watch_{nullptr};  // released when it is made, acquired by users
  mutable std::mutex standing_mutex_;
  mutable std::shared_ptr<const Standing> standing_;  // this process's handle, once it was asked for
  std::unordered_set<int64_t> used_instances_;
  std::atomic<uint64_t> num_reconfigurations_{0};
  std::mutex cuda_side_mutex_;                 // guards the next four members
  std::unique_ptr<CudaSide> owned_cuda_side_;  // from the first CUDA tensor on
  Suspension suspension_ = Suspension::kNone;
  uint32_t num_suspensions_ = 0;
  std::atomic<CudaSide*> cuda_side_{nullptr};        // released when it is made, acquired by users
  std::atomic<uint64_t> num_launched_by_former_{0};  // relaxed: a statistic
};

// Gives a group the rank and size of its backend, after that was reconfigured. torch does so itself since 2.14.
void follow_reconfiguration(c10d::ProcessGroup& group, const c10d::Backend& backend);

}  // namespace axon::c10d_backend
