// A Work on CUDA tensors: its interface to callers, in terms of streams.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "c10d/errors.hpp"
#include "c10d/in_flight_works.hpp"
#include "c10d/work.hpp"
#include "python/signals.hpp"

namespace axon::c10d_backend {

void LateFailure::note(const std::exception_ptr& failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
}

void LateFailure::forget(const std::exception_ptr& failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_ == failure) failure_ = nullptr;
}

void LateFailure::note_fault(const std::exception_ptr& fault) noexcept {
  const std::lock_guard lock(mutex_);
  if (!fault_) fault_ = fault;
}

std::exception_ptr LateFailure::take() noexcept {
  const std::lock_guard lock(mutex_);
  return fault_ ? fault_ : std::exchange(failure_, nullptr);
}

void LateFailure::rethrow() {
  if (const std::exception_ptr failure = take()) rethrow_here(failure);
}

void AxonWork::claim_device(at::Device device, const char* operation) {
  if (inputs_.empty() && outputs_.empty()) device_ = device;
  if (device == device_) return;
  throw_value_error(std::string(operation) + ": tensors are on " + device_.str() + " and on " + device.str() +
                    "; allowed: one device per call");
}

void AxonWork::run_on(const StreamPosition& position) {
  enqueued_.emplace(Enqueued{.position = position, .passed = c10::Event(device_.type())});
  enqueued_->passed.record(position.stream);
  if (!position.captured)
    InFlightWorks::instance().keep(c10::intrusive_ptr<AxonWork>::unsafe_reclaim_from_nonowning(this));
  call_end_of_record();
}

void AxonWork::begin_times_on(const StreamPosition& position) {
  if (position.captured) times_.reset();
  if (times_) times_->begin_on(position.stream);
}

void AxonWork::end_times_on(const StreamPosition& position) {
  if (times_) times_->end_on(position.stream);
}

void AxonWork::add_result(const at::Tensor& tensor) {
  if (tensor.is_cuda()) device_ = tensor.device();
  outputs_.push_back(tensor);
}

// A captured call passes at each replay of its graph, so the host treats it as done.
bool AxonWork::has_passed() const {
  return enqueued_->position.captured || enqueued_->passed.query();
}

bool AxonWork::wait_on_device(std::chrono::milliseconds timeout) {
  throw_failure_if_known();
  enqueued_->passed.block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  // The caller owns its tensors again. Temporary tensors belong to the stream of the call, which may be another.
  if (!has_temporaries()) InFlightWorks::instance().release(*this);
  if (timeout == kNoTimeout) return true;
  const auto deadline = Clock::now() + timeout;
  while (!isCompleted()) {
    if (Clock::now() >= deadline) {
      throw_failure(Status(ErrorCode::kTimeout, first_.describe() + ": Timed out in wait(timeout) after " +
                                                    std::to_string(timeout.count()) +
                                                    " ms; the operation goes on until its own timeout"));
    }
    python::check_signals();
    std::this_thread::sleep_for(kLookInterval);
  }
  throw_failure_if_known();
  if (const std::shared_ptr<engine::Communicator> communicator = communicator_.lock()) {
    // A kernel that has failed also lets its stream pass.
    if (const Status failure = communicator->failure(); !failure.ok()) rethrow_here(failure);
  }
  return true;
}

void AxonWork::throw_failure_if_known() {
  if (const std::exception_ptr failure = exception()) {
    late_failure_->forget(failure);
    rethrow_here(failure);
  }
  late_failure_->rethrow();
}

bool AxonWork::has_temporaries() {
  const OperationList all = operations();
  return std::any_of(all.begin(), all.end(),
                     [](const WorkOperation* operation) { return operation->has_temporaries(); });
}

// Complete from the start: users of the future wait on a stream.
void AxonWork::mark_on_device(c10::ivalue::Future& future) {
  const c10::StreamGuard on_stream(enqueued_->position.stream);
  mark(future);
}

}  // namespace axon::c10d_backend
