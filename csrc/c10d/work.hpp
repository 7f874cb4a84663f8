// AxonWork: what a call returns to PyTorch, with the memory and tensors that the engine uses until it finishes.
//
//   auto work = c10::make_intrusive<AxonWork>(communicator, call);
//   WorkOperation& operation = work->add_operation();  // one operation of the engine; coalesced calls have several
//   operation.arguments.kind = OperationKind::kAllReduce;
//   operation.add_output(tensor, Access::kReadWrite);
//   work->set_timeout(timeout);
//   work->start(*communicator);                    // returns at once
//   work->wait();                                  // drives the engine until it finishes; throws its failure
//
// Ownership: the caller holds a reference, and so does the engine from start() until the last operation is released.
// The tensors live as long as the Work. If the group is destroyed meanwhile, the Work ends with an error. At
// completion, the driving thread copies staged outputs back, completes the Work and marks its future.
//
// On CUDA tensors, CudaSide enqueues the operations instead, and streams take the place of the engine. The Work is
// complete when its stream has passed it, wait() makes the current stream wait, and the future is marked from the
// start.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/SmallVector.h>
#include <torch/version.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "c10d/abort_hooks.hpp"
#include "c10d/nan_checks.hpp"
#include "c10d/success_hooks.hpp"
#include "c10d/times.hpp"
#include "engine/communicator.hpp"
#include "engine/operation.hpp"

namespace axon::gpu_comm {
class Relay;
}  // namespace axon::gpu_comm

namespace axon::c10d_backend {

class AxonWork;

// A failure that occurred after its call had returned; the next call reports it. Any thread.
class LateFailure {
 public:
  // Notes the failure of one operation, which is reported once.
  void note(const std::exception_ptr& failure) noexcept;
  // Drops the failure of an operation: the caller that waited for it has received it.
  void forget(const std::exception_ptr& failure) noexcept;
  // Notes the failure of the group, which every later call reports.
  void note_fault(const std::exception_ptr& fault) noexcept;
  void rethrow();

 private:
  std::exception_ptr take() noexcept;

  std::mutex mutex_;
  std::exception_ptr failure_;
  std::exception_ptr fault_;
};

enum class Access : uint8_t { kRead, kWrite, kReadWrite };

// One operation of a Work.
class WorkOperation final : public engine::Operation {
 public:
  explicit WorkOperation(AxonWork& work) noexcept : work_(work) {}
  ~WorkOperation() override = default;

  // Adds the next block of the arguments: a whole tensor, copied to and from staging memory if it has gaps.
  void add_input(const at::Tensor& tensor);
  void add_output(const at::Tensor& tensor, Access access = Access::kWrite);
  // Adds an output that is its own input. With Access::kRead the engine does not write to the tensor.
  void add_in_place(const at::Tensor& tensor, Access access);
  // Adds the tensor as consecutive blocks of these sizes.
  void add_input_blocks(const at::Tensor& tensor, c10::ArrayRef<size_t> block_sizes);
  void add_output_blocks(const at::Tensor& tensor, c10::ArrayRef<size_t> block_sizes);

  // Called once all blocks have been added.
  void seal();
  void start(engine::Communicator& communicator);
  // Copies staged elements back to the output tensors with gaps.
  void copy_back();
  // The bytes of its inputs or of its outputs, whichever are larger.
  uint64_t num_bytes() const noexcept;
  // Returns whether it holds tensors that the caller does not know of.
  bool has_temporaries() const noexcept { return !temporaries_.empty() || !copies_back_.empty(); }

  std::shared_ptr<gpu_comm::Relay> relay;  // of CUDA tensors that go through the host

 private:
  friend class AxonWork;

  struct CopyBack {
    at::Tensor staged;
    at::Tensor target;
  };

  Buffer claim(const at::Tensor& tensor, Access access);
  void separate_inputs();
  bool is_disturbed(size_t input) const noexcept;
  bool may_alias(size_t input, size_t output) const noexcept;

  void on_finished() noexcept override;
  void on_released() noexcept override;

  AxonWork& work_;
  c10::intrusive_ptr<AxonWork> engines_reference_;
  c10::SmallVector<ConstBuffer, 4> inputs_;
  c10::SmallVector<Buffer, 4> outputs_;
  std::vector<CopyBack> copies_back_;
  std::vector<at::Tensor> temporaries_;
};

using OperationList = c10::SmallVector<WorkOperation*, 4>;

// More than 30 methods: c10d::Work declares 11 of them. The others build the operations of a call and end them, on the
// CPU or on a stream, with one outcome.
class AxonWork final : public c10d::Work {
 public:
  // A call's names. The title is for the profiler: "axon:all_reduce".
  struct Call {
    c10d::OpType type;
    const char* title;
    int rank;
  };
  AxonWork(const std::shared_ptr<engine::Communicator>& communicator, const Call& call);
  // While a profiler runs: records the call from here to its completion.
  AxonWork(const std::shared_ptr<engine::Communicator>& communicator, const Call& call, std::vector<at::Tensor> inputs);

  // Called before the operations are added, in a group that refuses NaNs.
  void list_inputs_to_check() { inputs_to_check_ = std::make_unique<std::vector<CheckedInput>>(); }
  // Null unless they are listed.
  const std::vector<CheckedInput>* inputs_to_check() const noexcept { return inputs_to_check_.get(); }

  WorkOperation& add_operation();
  OperationList operations();
  // The device of all its tensors; the CPU if it has none.
  at::Device device() const noexcept { return device_; }
  // For calls that need no operation: adds a tensor to result().
  void add_result(const at::Tensor& tensor);
  void start(engine::Communicator& communicator);
  // Completes the Work without doing anything, instead of start().
  void skip() { complete(); }
  void set_timeout(std::chrono::milliseconds timeout);
  void set_call_site(std::string_view call_site);

  // On CUDA tensors: the stream of an asynchronous call's operations, up to its present end.
  struct StreamPosition {
    c10::Stream stream;
    bool captured = false;  // in a graph
  };
  void run_on(const StreamPosition& position);

  // Keeps the memory of its tensors, which callers may rebind to other memory (`parameter.data = ...`, as Module.to()
  // does). For calls that return before they finish. Called once all operations have been added.
  void keep_memory();

  // Called before start(), in a group whose calls are timed.
  void take_times();
  void begin_times_on(const StreamPosition& position);
  void end_times_on(const StreamPosition& position);
  // Null if the call is not timed, as in a capture.
  const std::shared_ptr<Times>& times() const noexcept { return times_; }
  float getDuration() const override;  // ms
  // Sets what is called at a failure.
  void call_at_failure(std::shared_ptr<AbortHooks> hooks) { abort_hooks_ = std::move(hooks); }
  // Sets what is called at success, and gives the Work its key.
  void report_success_to(std::shared_ptr<SuccessHooks> hooks);
  bool reports_success() const noexcept { return success_hooks_ != nullptr; }
  uint64_t key() const noexcept { return key_; }
  // Sets where a failure is reported besides the waiter: on a device, callers need not wait.
  void report_to(std::shared_ptr<LateFailure> listener) { late_failure_ = std::move(listener); }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override;
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
  uint64_t getCompletionKey() const override { return reports_success() ? key_ : Work::getCompletionKey(); }
#endif

  // The user's tensors.
  std::vector<at::Tensor> inputs() const { return {inputs_.begin(), inputs_.end()}; }
  std::vector<at::Tensor> outputs() const { return {outputs_.begin(), outputs_.end()}; }

 private:
  friend class WorkOperation;

  template <typename Visitor>
  void for_each_operation(Visitor visit);
  void await(engine::Communicator& communicator, WorkOperation& operation, Clock::time_point deadline);
  void claim_device(at::Device device, const char* operation);
  void on_operation_finished(WorkOperation& operation) noexcept;
  void note_failure(std::exception_ptr failure) noexcept;
  void call_end_of_record() noexcept;
  void report_success() const noexcept;
  bool wait_on_device(std::chrono::milliseconds timeout);
  void throw_failure_if_known();
  bool has_passed() const;
  bool has_temporaries();
  void mark_on_device(c10::ivalue::Future& future);
  void complete() noexcept;
  void mark(c10::ivalue::Future& future) const;
  static void mark(c10::ivalue::Future& future, const std::exception_ptr& failure,
                   const std::vector<at::Tensor>& outputs);

  // Not an owner: a Work that outlives its group must not keep it. A wait takes a reference while it lasts.
  const std::weak_ptr<engine::Communicator> communicator_;
  WorkOperation first_;
  std::vector<std::unique_ptr<WorkOperation>> others_;
  size_t num_operations_ = 0;
  c10::SmallVector<at::Tensor, 2> inputs_;
  c10::SmallVector<at::Tensor, 2> outputs_;
  std::unique_ptr<std::vector<CheckedInput>> inputs_to_check_;
  c10::SmallVector<c10::Storage, 4> memory_;
  at::Device device_ = at::kCPU;

  struct Enqueued {
    StreamPosition position;
    c10::Event passed;
  };
  std::optional<Enqueued> enqueued_;
  std::shared_ptr<Times> times_;
  std::shared_ptr<LateFailure> late_failure_;
  std::shared_ptr<AbortHooks> abort_hooks_;      // null if there are none
  std::shared_ptr<SuccessHooks> success_hooks_;  // null if there are none
  uint64_t key_ = 0;

  std::atomic<size_t> num_unfinished_{0};
  std::atomic<bool> completed_{false};  // released in complete(), acquired by readers of the outcome
  mutable std::mutex outcome_mutex_;    // guards failure_ while incomplete, and future_
  std::exception_ptr failure_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // made on demand
};

}  // namespace axon::c10d_backend
