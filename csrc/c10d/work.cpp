#include "c10d/work.hpp"

#include <ATen/core/ivalue_inl.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

#include "base/interrupts.hpp"
#include "base/log.hpp"
#include "c10d/callbacks.hpp"
#include "c10d/errors.hpp"
#include "python/signals.hpp"

namespace axon::c10d_backend {

// Practically for ever, without overflow when added to a clock.
static constexpr std::chrono::hours kNever{24 * 365};

AxonWork::AxonWork(const std::shared_ptr<engine::Communicator>& communicator, const Call& call)
    : Work(call.rank, call.type), communicator_(communicator), first_(*this) {}

AxonWork::AxonWork(const std::shared_ptr<engine::Communicator>& communicator, const Call& call,
                   std::vector<at::Tensor> inputs)
    : Work(call.rank, call.type, call.title, std::move(inputs)), communicator_(communicator), first_(*this) {}

WorkOperation& AxonWork::add_operation() {
  if (num_operations_++ == 0) return first_;
  return *others_.emplace_back(std::make_unique<WorkOperation>(*this));
}

template <typename Visitor>
void AxonWork::for_each_operation(Visitor visit) {
  if (num_operations_ != 0) visit(first_);
  for (const auto& operation : others_) visit(*operation);
}

OperationList AxonWork::operations() {
  OperationList operations;
  for_each_operation([&](WorkOperation& operation) { operations.push_back(&operation); });
  return operations;
}

void AxonWork::set_timeout(std::chrono::milliseconds timeout) {
  for_each_operation([&](WorkOperation& operation) { operation.timeout = timeout; });
}

void AxonWork::set_call_site(std::string_view call_site) {
  for_each_operation([&](WorkOperation& operation) { operation.call_site = call_site; });
}

void AxonWork::start(engine::Communicator& communicator) {
  for_each_operation([](WorkOperation& operation) { operation.seal(); });
  if (num_operations_ == 0) return complete();
  num_unfinished_.store(num_operations_, std::memory_order_relaxed);  // the submission publishes it
  for_each_operation([&](WorkOperation& operation) { operation.start(communicator); });
}

void AxonWork::keep_memory() {
  for (const auto* tensors : {&inputs_, &outputs_}) {
    for (const at::Tensor& tensor : *tensors) {
      if (tensor.has_storage()) memory_.push_back(tensor.storage());
    }
  }
}

void AxonWork::take_times() {
  times_ = std::make_shared<Times>();
  times_->begin();
}

void AxonWork::report_success_to(std::shared_ptr<SuccessHooks> hooks) {
  success_hooks_ = std::move(hooks);
  key_ = SuccessHooks::next_key();
}

// Not before the Work is complete: a hook's owner that has just got the Work asks it, then waits for the hook.
void AxonWork::report_success() const noexcept {
  if (!success_hooks_ || failure_) return;
  std::optional<float> duration;
  if (times_) duration = std::chrono::duration<float, std::milli>(times_->active()).count();
  success_hooks_->report(key_, duration);
}

float AxonWork::getDuration() const {
  if (!times_ || !times_->are_over()) {
    throw_value_error(
        first_.describe() +
        ": has no duration; allowed: finished calls that were made after the group's _enable_collectives_timing() and "
        "outside of CUDA graphs");
  }
  return std::chrono::duration<float, std::milli>(times_->active()).count();
}

void AxonWork::on_operation_finished(WorkOperation& operation) noexcept {
  if (!operation.status().ok()) {
    note_failure(to_exception(operation.status()));
  } else if (device_.is_cpu()) {
    try {
      operation.copy_back();
    } catch (...) {
      note_failure(std::current_exception());
    }
  }
  if (device_.is_cpu() && num_unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) complete();
}

void AxonWork::note_failure(std::exception_ptr failure) noexcept {
  if (times_) times_->note_failure();
  if (late_failure_) late_failure_->note(failure);
  if (abort_hooks_) abort_hooks_->run();
  const std::lock_guard lock(outcome_mutex_);
  if (!failure_) failure_ = std::move(failure);
}

void AxonWork::complete() noexcept {
  if (C10_UNLIKELY(times_ != nullptr)) times_->end();
  call_end_of_record();  // before waiters wake up: a waiter may end the profile, which drops open records
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(outcome_mutex_);
    completed_.store(true, std::memory_order_release);
    future = future_;
  }
  completed_.notify_all();
  if (C10_UNLIKELY(success_hooks_ != nullptr)) report_success();
  if (!future) return;
  if (!engine::Progress::is_background()) return mark(*future);
  // The callback copies what it needs from the work, which may be destroyed earlier.
  run_beside_the_engine([future, failure = exception(), outputs = outputs()] { mark(*future, failure, outputs); });
}

void AxonWork::call_end_of_record() noexcept {
  if (!recordFunctionEndCallback_) return;
  recordFunctionEndCallback_();
  recordFunctionEndCallback_ = nullptr;
}

void AxonWork::mark(c10::ivalue::Future& future) const {
  mark(future, exception(), outputs());
}

// Runs the callbacks that wait for the future.
void AxonWork::mark(c10::ivalue::Future& future, const std::exception_ptr& failure,
                    const std::vector<at::Tensor>& outputs) {
  try {
    failure ? future.setError(failure) : future.markCompleted(c10::IValue(outputs));
  } catch (const std::exception& error) {  // our callers cannot handle it
    log::warn(std::string("a callback of a future has thrown: ") + error.what());
  }
}

c10::intrusive_ptr<c10::ivalue::Future> AxonWork::getFuture() {
  {
    const std::lock_guard lock(outcome_mutex_);
    if (future_) return future_;
    std::vector<c10::Device> devices;
    if (enqueued_) devices.push_back(device_);
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
    if (!enqueued_ && !completed_.load(std::memory_order_relaxed)) return future_;
  }
  enqueued_ ? mark_on_device(*future_) : mark(*future_);
  return future_;
}

bool AxonWork::wait(std::chrono::milliseconds timeout) {
  const auto however_it_ends = c10::make_scope_exit([]() noexcept { python::block_if_python_ends(); });
  if (enqueued_) return wait_on_device(timeout);
  if (!isCompleted()) {
    const auto deadline = Clock::now() + (timeout > kNoTimeout ? Clock::duration(timeout) : Clock::duration(kNever));
    if (const std::shared_ptr<engine::Communicator> communicator = communicator_.lock()) {
      for_each_operation([&](WorkOperation& operation) { await(*communicator, operation, deadline); });
    }
    completed_.wait(false, std::memory_order_acquire);  // another thread may be copying outputs back
  }
  if (failure_) rethrow_here(failure_);
  return true;
}

void AxonWork::await(engine::Communicator& communicator, WorkOperation& operation, Clock::time_point deadline) {
  while (!isCompleted() && !communicator.wait(operation, interrupts::next_look(deadline))) {
    python::check_signals();
    if (Clock::now() < deadline) continue;
    const Status late = communicator.explain(operation);
    if (late.ok() || isCompleted()) return;  // the peers have finished after all
    rethrow_here(late);
  }
}

bool AxonWork::isCompleted() {
  return enqueued_ ? has_passed() : completed_.load(std::memory_order_acquire);
}

bool AxonWork::isSuccess() const {
  return (enqueued_ ? has_passed() : completed_.load(std::memory_order_acquire)) && !exception();
}

std::exception_ptr AxonWork::exception() const {
  if (!enqueued_) return completed_.load(std::memory_order_acquire) ? failure_ : nullptr;
  const std::lock_guard lock(outcome_mutex_);
  return failure_;
}

int AxonWork::sourceRank() const {
  return first_.source();
}

uint64_t AxonWork::getSequencenumber() const {
  return first_.sequence();
}

std::vector<at::Tensor> AxonWork::result() {
  return outputs();
}

void AxonWork::abort() {
  if (const std::shared_ptr<engine::Communicator> communicator = communicator_.lock()) {
    communicator->abort("Work.abort() was called");
  }
}

}  // namespace axon::c10d_backend
