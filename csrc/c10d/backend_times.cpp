// Times of calls, for completion hooks, Work._get_duration() and torch's time estimator.
#include <cmath>
#include <limits>
#include <utility>

#include "c10d/backend.hpp"
#include "c10d/errors.hpp"

namespace axon::c10d_backend {

void AxonBackend::enableCollectivesTiming() {
  is_timed_.store(true, std::memory_order_relaxed);
}

void AxonBackend::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  if (onCompletionHook_)
    throw_value_error("_register_on_completion_hook: the group already has a hook; allowed: one hook per group");
  using Hook = std::function<void(std::shared_ptr<c10d::WorkInfo>)>;
  auto told = [hook = Hook(std::move(hook))](const CompletionHook::Call& call, Times::Clock::time_point ended) {
    hook(std::make_shared<c10d::WorkInfo>(call.type, call.number, call.times->called(), ended, call.times->active()));
  };
  owned_completion_hook_ = std::make_unique<CompletionHook>(std::move(told));
  onCompletionHook_ = [](const auto&) {};  // tells torch that the group has a hook
  completion_hook_.store(owned_completion_hook_.get(), std::memory_order_release);
  enableCollectivesTiming();
}

void AxonBackend::waitForPendingWorks() {
  if (CompletionHook* hook = completion_hook_.load(std::memory_order_acquire)) hook->drain();
}

static Estimator::Call to_estimate(const AxonWork& work, const WorkOperation& operation) {
  return {.kind = operation.arguments.kind, .device = work.device().type(), .num_bytes = operation.num_bytes()};
}

void AxonBackend::note_times(AxonWork& work, const Call& call) {
  if (CompletionHook* hook = completion_hook_.load(std::memory_order_acquire)) {
    hook->note({.type = call.type, .number = getSequenceNumberForGroup(), .times = work.times(), .communicator = {}});
  }
  if (work.reports_success() && !work.device().is_cpu()) {
    device_watch().note(
        {.type = call.type, .number = work.key(), .times = work.times(), .communicator = communicator_});
  }
  if (const OperationList operations = work.operations(); operations.size() == 1) {
    estimator_.note(to_estimate(work, *operations.front()), work.times());
  }
}

// A kernel that fails lets its stream pass, too, so the group is asked. Its hooks for failures run then, because no
// other thread may notice before the next call.
CompletionHook& AxonBackend::device_watch() {
  std::call_once(device_watch_made_, [&] {
    auto tell = [successes = success_hooks_, failures = abort_hooks_, is_known = false](
                    const CompletionHook::Call& call, Times::Clock::time_point) mutable {
      const std::shared_ptr<engine::Communicator> communicator = call.communicator.lock();
      const bool has_failed = call.times->has_failed() || (communicator && !communicator->failure().ok());
      if (!has_failed) {
        successes->report(call.number, std::chrono::duration<float, std::milli>(call.times->active()).count());
      } else if (!is_known) {
        failures->run();
      }
      is_known = has_failed;
    };
    owned_device_watch_ = std::make_unique<CompletionHook>(std::move(tell));
    device_watch_.store(owned_device_watch_.get(), std::memory_order_release);
  });
  return *owned_device_watch_;
}

void AxonBackend::startTimeEstimate() {
  estimate_ = 0;
}

AxonBackend::WorkPtr AxonBackend::estimate(c10::intrusive_ptr<AxonWork> work, const Mode& mode) {
  for (const WorkOperation* operation : work->operations()) {
    const auto known = estimator_.estimate(to_estimate(*work, *operation));
    *estimate_ += known ? known->count() : std::numeric_limits<double>::quiet_NaN();
  }
  work->skip();
  return mode.asynchronous ? WorkPtr(std::move(work)) : nullptr;
}

float AxonBackend::endTimeEstimate() {
  if (!estimate_) throw_value_error("_end_time_estimate() without _start_time_estimate()");
  const double microseconds = *std::exchange(estimate_, std::nullopt);
  return std::isnan(microseconds) ? -1 : static_cast<float>(microseconds);
}

}  // namespace axon::c10d_backend
