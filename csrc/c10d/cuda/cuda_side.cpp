#include "c10d/cuda_side.hpp"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <bit>
#include <thread>

#include "base/config.hpp"
#include "base/interrupts.hpp"
#include "base/log.hpp"
#include "c10d/call_site.hpp"
#include "c10d/cuda/conversions.hpp"
#include "c10d/errors.hpp"
#include "c10d/in_flight_works.hpp"
#include "collectives/selector.hpp"
#include "cuda/capture.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "gpu_comm/device_group.hpp"
#include "gpu_comm/launch.hpp"
#include "gpu_comm/relay/captured_slots.hpp"
#include "gpu_comm/relay/column_plans.hpp"
#include "gpu_comm/relay/direct_plan.hpp"
#include "gpu_comm/relay/relay.hpp"
#include "gpu_comm/result_digest.hpp"
#include "gpu_comm/selector.hpp"
#include "gpu_comm/workspace/workspace.hpp"
#include "ipc/arena.hpp"
#include "python/signals.hpp"

namespace axon::c10d_backend {

namespace {

c10::impl::VirtualGuardImpl torch_cuda() {
  return c10::impl::VirtualGuardImpl(at::kCUDA);
}

// The first use of a peer waits for it, and runs signal handlers meanwhile, which may use the group.
template <typename Wait>
auto without(std::unique_lock<std::mutex>& lock, Wait wait) {
  lock.unlock();
  auto result = wait();
  lock.lock();
  return value_of(std::move(result));
}

void clear_in_flight_works() noexcept {
  try {
    const cuda::RelaxedCapture beside_captures;
    InFlightWorks::instance().clear();
  } catch (const std::exception&) {
    log::info("CUDA has failed: its unfinished Works are kept");
  }
}

GroupStreams::Link link_of(const WorkOperation& message, Way way) {
  // Kernels match the messages between two ranks in order, whatever their tags.
  return {message.peer, message.direction, way, way == Way::kKernel ? 0 : message.tag};
}

}  // namespace

void give_back_arenas() noexcept {
  ipc::Arena::give_back_unused();
}

bool has_passed(const c10::Event& event) {
  const c10::DeviceGuard on_device(event.device());
  const cuda::RelaxedCapture beside_captures;
  return event.query();
}

bool is_capturing(c10::Stream stream) {
  return value_of(cuda::is_capturing(view_of(stream)));
}

CudaSide::CudaSide(std::shared_ptr<engine::Communicator> communicator, at::Device device,
                   std::chrono::milliseconds timeout, uint32_t round)
    : communicator_(std::move(communicator)),
      device_(device),
      serial_([] {
        static std::atomic<uint64_t> num_made{0};
        return num_made.fetch_add(1, std::memory_order_relaxed);
      }()),
      streams_(torch_cuda().getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      most_workspace_bytes_(std::stoull(config::text("AXON_WORKSPACE_MB")) << 20) {
  const c10::DeviceGuard on_device(device_);
  passed_ = std::make_unique<const cuda::Event>(value_of(cuda::Event::create_untimed()));
  expired_wait_ = value_of(gpu_comm::ExpiredWait::open());
  captured_slots_ = std::make_unique<gpu_comm::CapturedSlots>();
  group_ = value_of(gpu_comm::DeviceGroup::form(*communicator_, device.index(), timeout, round));
}

CudaSide::~CudaSide() {
  drain();
  try {
    const c10::DeviceGuard on_device(device_);  // throws once CUDA has failed
    const std::weak_ptr<void> graphs = group_->graphs();
    group_.reset();
    gpu_comm::Workspace::let_go(std::move(workspaces_), graphs);
  } catch (const std::exception&) {
    log::info("CUDA has failed or the process is exiting: a group's workspaces are not released");
  }
}

// Waits for each stream on its own: another thread may be capturing on other streams of the device.
void CudaSide::drain() noexcept {
  try {
    const c10::DeviceGuard on_device(device_);
    const cuda::RelaxedCapture beside_captures;
    std::unique_lock lock(mutex_);
    const std::vector<c10::Stream> used = streams_.used();
    lock.unlock();
    for (const c10::Stream stream : used) {
      const Result<bool> capturing = is_capturing(view_of(stream));
      if (capturing.ok() && !capturing.value()) drain(stream);
    }
    lock.lock();
    note_fault();
  } catch (const std::exception&) {
    log::info("CUDA has failed or the process is exiting: enqueued work is lost");
  }
  clear_in_flight_works();
}

// Kernels and operations end at their timeouts. If a signal's handler raises, they end at once, together with the
// group. The group's memory can only be released after them, so this waits for the stream's other work, too.
void CudaSide::drain(c10::Stream stream) {
  auto look_at = Clock::now() + interrupts::kInterval;
  for (; !stream.query(); std::this_thread::sleep_for(kLookInterval)) {
    if (Clock::now() < look_at) continue;
    if (interrupts::are_pending()) {
      communicator_->abort("a signal interrupted the wait for the group's enqueued work");
      return torch_cuda().synchronizeStream(stream);
    }
    look_at = Clock::now() + interrupts::kInterval;
  }
}

void CudaSide::finish() {
  drain();
  python::raise_what_signals_raised();
  const std::lock_guard lock(mutex_);
  check_health();
}

// cudaStreamPerThread means another stream in each thread, and threads other than the caller's use the stream.
c10::Stream CudaSide::current_stream() const {
  const c10::Stream stream = torch_cuda().getStream(device_);
  if (view_of(stream).get() == cudaStreamPerThread) {
    throw_value_error(
        "the current stream is cudaStreamPerThread, which is a different stream in every thread; allowed: "
        "torch.cuda.Stream");
  }
  return stream;
}

// Kernels and the engine cannot throw, so this reports failures since the last call.
void CudaSide::check_health(const WorkOperation* caller) {
  note_fault();
  late_failure_->rethrow();
  if (!communicator_->is_broken()) return;
  const Status known = communicator_->failure();
  const std::string call = caller == nullptr ? "" : caller->describe() + ": ";
  rethrow_here(Status(known.code(), communicator_->signed_text(call + known.message())));
}

void CudaSide::note_fault() {
  if (expired_wait_->has_occurred()) {
    late_failure_->note_fault(to_exception(Status(
        ErrorCode::kInternal, communicator_->signed_text("the GPU has waited for the host's part of an operation "
                                                         "beyond its timeout; its results are undefined"))));
  }
  const Status fault = group_->fault();
  if (fault.ok()) return;
  const Status known = communicator_->failure();  // after a timeout, this names the missing ranks
  // After the end of the group, the fault also names the operation that it ended.
  const bool says_more = fault.message().starts_with(known.message());
  const std::string& told = says_more ? fault.message() : known.message();
  late_failure_->note_fault(to_exception(Status(known.code(), communicator_->signed_text(told))));
}

void CudaSide::enqueue(AxonWork& work, Timing timing) {
  const c10::DeviceGuard on_device(device_);
  const c10::Stream current = current_stream();
  const bool captured = is_capturing(current);
  if (captured) {
    work.set_call_site(interned_call_site());  // a launch has no line of its own
  } else {
    clear_in_flight_works();
  }
  const OperationList operations = work.operations();
  std::unique_lock lock(mutex_);
  check_health(operations.empty() ? nullptr : operations.front());
  work.report_to(late_failure_);
  const Ways ways = choose(operations, captured, lock);
  streams_.begin_call();
  const c10::Stream stream = stream_for(ways, timing == Timing::kAsynchronous ? streams_.own() : current, captured);
  if (stream != current) put_in_order(current, stream);
  const c10::StreamGuard on_stream(stream);
  const AxonWork::StreamPosition position{.stream = stream, .captured = captured};
  work.begin_times_on(position);
  try {
    enqueue_operations(ways, position, current);
    if (!captured) check_results(operations, stream);
    for (WorkOperation* operation : operations) operation->copy_back();
    work.end_times_on(position);
  } catch (...) {
    work.run_on(position);  // enqueued work uses its tensors
    give_up();
    throw;
  }
  if (timing == Timing::kAsynchronous || work.reports_success()) work.run_on(position);
}

c10::Stream CudaSide::stream_for(const Ways& ways, c10::Stream of_collectives, bool captured) {
  const auto is_message = [](const OperationList& operations) {
    return !operations.empty() && operations.front()->direction != engine::Direction::kCollective;
  };
  if (is_message(ways.launched)) return streams_.of_link(link_of(*ways.launched.front(), Way::kKernel));
  if (is_message(ways.relayed)) {
    return stream_of_relay(*ways.relayed.front(), {.stream = of_collectives, .captured = captured});
  }
  streams_.note_use(of_collectives);
  return of_collectives;
}

// Runs before anything is enqueued, and throws the errors that are detectable by then.
CudaSide::Ways CudaSide::choose(const OperationList& operations, bool captured, std::unique_lock<std::mutex>& lock) {
  Ways ways;
  for (WorkOperation* operation : operations) {
    operation->seal();
    if (is_alone(*operation)) {
      ways.alone.push_back(operation);
    } else {
      const bool is_launched = has_kernel(*operation, lock);
      if (!is_launched && goes_in_columns(*operation, lock)) operation->scope = engine::Scope::kColumn;
      (is_launched ? ways.launched : ways.relayed).push_back(operation);
    }
  }
  for (const WorkOperation* operation : ways.relayed) {
    if (captured && operation->direction == engine::Direction::kReceive && operation->peer == messaging::kAnyRank) {
      throw_value_error("recv: argument 'src' is None, for any rank; allowed in a CUDA graph: a rank of the group");
    }
  }
  return ways;
}

// Returns whether the group has one rank, so that the operation is at most a copy to itself. PREMUL_SUM is the
// exception, because of its factor.
bool CudaSide::is_alone(const WorkOperation& operation) const {
  return communicator_->size() == 1 && operation.direction == engine::Direction::kCollective &&
         operation.arguments.reduction != Reduction::kPremulSum;
}

// Returns whether the ranks of each host combine their data, and each of them exchanges a part with its column.
bool CudaSide::goes_in_columns(const WorkOperation& operation, std::unique_lock<std::mutex>& lock) {
  if (operation.direction != engine::Direction::kCollective) return false;
  const bool has_local_links = without(lock, [&] { return group_->has_local_links(); });
  return gpu_comm::has_column_plan(operation, *group_, *communicator_, has_local_links);
}

// Returns whether a kernel serves the operation. Kernels match the messages between two ranks in order, the host engine
// matches by tags.
bool CudaSide::has_kernel(const WorkOperation& operation, std::unique_lock<std::mutex>& lock) {
  if (operation.direction == engine::Direction::kCollective) {
    return without(lock, [&] { return group_->has_all_links(); }) && group_->serves(operation);
  }
  if (operation.tag != 0 || operation.peer == communicator_->rank()) return false;
  if (operation.peer == messaging::kAnyRank) {
    if (group_->num_local() == 1) return false;  // all messages go through the hosts
    throw_value_error(
        "recv: argument 'src' is None, for any rank; allowed with CUDA tensors: a rank of the group, or any with a tag "
        "other than 0");
  }
  return without(lock, [&] { return group_->has_link(operation.peer); }) && group_->serves(operation);
}

void CudaSide::enqueue_operations(const Ways& ways, const AxonWork::StreamPosition& position, c10::Stream current) {
  const bool is_single = ways.relayed.size() == 1 && ways.launched.empty();
  std::vector<Relaying> relaying;
  for (WorkOperation* operation : ways.relayed) {
    relaying.push_back({*operation, stream_of_relay(*operation, position)});
    const c10::Stream stream = relaying.back().stream;
    if (stream != position.stream) put_in_order(current, stream);
    if (position.captured) {
      capture_relay(*operation, stream, is_single);
    } else {
      open_relay(*operation);
      operation->start(*communicator_);
    }
    check(is_single ? operation->relay->enqueue(view_of(stream)) : operation->relay->enqueue_first(view_of(stream)));
  }
  for (const WorkOperation* operation : ways.alone) {
    check(gpu_comm::copy_own_shard(operation->arguments, view_of(position.stream)));
  }
  launch(ways.launched, position);
  if (!is_single) enqueue_in_turn(relaying);
  for (const Relaying& each : relaying) {
    if (each.stream != position.stream) put_in_order(each.stream, position.stream);
  }
}

// Enqueues one segment of each operation after the other, so that none has to end before another one goes on.
void CudaSide::enqueue_in_turn(std::vector<Relaying> unfinished) {
  const auto has_ended = [&](const Relaying& each) {
    return !value_of(each.operation.relay->enqueue_next(view_of(each.stream)));
  };
  while (!unfinished.empty()) {
    std::vector<Relaying> rest;
    for (const Relaying& each : unfinished) {
      if (!has_ended(each)) rest.push_back(each);
    }
    unfinished.swap(rest);
  }
}

void CudaSide::launch(const OperationList& operations, const AxonWork::StreamPosition& position) {
  const c10::Stream stream = position.stream;
  const kernels::Beside beside = stream == streams_.own() ? kernels::Beside::kComputation : kernels::Beside::kNothing;
  c10::SmallVector<const engine::Operation*, 4> messages;
  c10::SmallVector<c10::Stream, 4> others;  // of the other links, whose earlier messages come first
  for (const WorkOperation* operation : operations) {
    if (operation->direction == engine::Direction::kCollective) {
      check(group_->launch(*operation, view_of(stream), beside));
      num_launched_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    messages.push_back(operation);
    const c10::Stream other = streams_.of_link(link_of(*operation, Way::kKernel));
    if (other != stream) others.push_back(other);
  }
  if (messages.empty()) return;
  if (position.captured) others.clear();  // captured work must not wait for work outside of the graph
  for (const c10::Stream other : others) put_in_order(other, stream);
  check(group_->launch_batch({messages.data(), messages.size()}, view_of(stream)));
  for (const c10::Stream other : others) put_in_order(stream, other);
}

void CudaSide::check_results(const OperationList& operations, c10::Stream stream) {
  const std::shared_ptr<engine::ResultCheck>& results = communicator_->result_check();
  if (!results) return;
  for (const WorkOperation* operation : operations) {
    if (operation->direction != engine::Direction::kCollective) continue;
    if (!engine::ResultCheck::covers(operation->arguments.kind)) continue;
    check(gpu_comm::check_result(communicator_->engine(), results, *operation, view_of(stream)));
  }
}

std::unique_ptr<gpu_comm::RelayPlan> CudaSide::plan_of(const WorkOperation& operation) {
  if (operation.scope == engine::Scope::kColumn) return gpu_comm::column_plan(operation, *group_, *communicator_);
  return gpu_comm::direct_plan(operation, communicator_->rank(), communicator_->size());
}

void CudaSide::open_relay(WorkOperation& operation) {
  operation.relay = value_of(gpu_comm::Relay::open(plan_of(operation), expired_wait_));
  operation.device_segments = operation.relay.get();
}

// Messages have streams of their own: one that waits stands in the way of no other, except of later ones to (or from)
// the same rank under the same tag.
c10::Stream CudaSide::stream_of_relay(const WorkOperation& operation, const AxonWork::StreamPosition& of_call) {
  if (operation.direction == engine::Direction::kCollective) return of_call.stream;
  const cuda::RelaxedCapture beside_captures;  // streams are queried
  return streams_.of_link(link_of(operation, of_call.captured ? Way::kGraph : Way::kHost));
}

GpuPath CudaSide::path_to(int peer) {
  const c10::DeviceGuard on_device(device_);
  if (!value_of(group_->has_link(peer))) {
    const Status obstacle = group_->obstacle_to(peer);
    return {.by_kernels = false, .obstacle = obstacle.ok() ? "" : obstacle.message()};
  }
  return {.by_kernels = true, .obstacle = "", .num_zero_copy = value_of(group_->num_zero_copy_messages())};
}

static std::string_view name_or_empty(gpu_comm::Kernel kernel) noexcept {
  return kernel == gpu_comm::Kernel::kNone ? "" : name_of(kernel);
}

std::string_view CudaSide::kernel_for(transport::OperationKind kind, size_t num_bytes) const {
  return name_or_empty(group_->kernel_for(gpu_comm::typical_query(kind, communicator_->size(), num_bytes)));
}

std::string_view typical_kernel(transport::OperationKind kind, int num_ranks, size_t num_bytes,
                                const collectives::AlgorithmOverrides& overrides) {
  return name_or_empty(gpu_comm::typical_kernel(kind, num_ranks, num_bytes, overrides.kernel_of(kind)));
}

const gpu_comm::Workspace* CudaSide::workspace(size_t num_bytes, std::chrono::milliseconds timeout) {
  const c10::DeviceGuard on_device(device_);
  const auto making = value_of(making_.lock_until(Clock::now() + timeout));
  std::unique_lock lock(mutex_);
  check_health();
  if (num_bytes > most_workspace_bytes_ || !without(lock, [&] { return group_->has_all_links(); })) return nullptr;
  if (!workspaces_.empty() && workspaces_.back()->num_bytes() >= num_bytes) return workspaces_.back().get();
  const gpu_comm::Workspace::Wish wish{.device = device_.index(),
                                       .num_bytes = std::min(std::bit_ceil(num_bytes), most_workspace_bytes_),
                                       .timeout = timeout};
  auto made = without(lock, [&] { return gpu_comm::Workspace::make(*communicator_, wish); });
  if (!made) {
    most_workspace_bytes_ = num_bytes - 1;
    return nullptr;
  }
  group_->watch(made->arrivals());
  workspaces_.push_back(std::move(made));
  return workspaces_.back().get();
}

CudaSide::Memory CudaSide::memory() {
  const std::lock_guard lock(mutex_);
  Memory memory{.arena = group_->arena_bytes(), .slice = group_->slice_bytes()};
  for (const auto& workspace : workspaces_) memory.workspaces += workspace->num_bytes();
  return memory;
}

void CudaSide::enqueue_barrier(const gpu_comm::StreamBarrier& barrier, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  check_health();
  streams_.note_use(stream);
  check(group_->enqueue_barrier(barrier, view_of(stream)));
  num_launched_.fetch_add(1, std::memory_order_relaxed);
}

c10::Stream CudaSide::awaiting_stream() {
  const std::lock_guard lock(mutex_);
  return streams_.awaiting();
}

void CudaSide::order(c10::Stream earlier, c10::Stream later) {
  const std::lock_guard lock(mutex_);
  put_in_order(earlier, later);
}

// Called with the lock.
void CudaSide::put_in_order(c10::Stream earlier, c10::Stream later) {
  check(view_of(earlier).record(*passed_));
  check(view_of(later).wait(*passed_));
}

void CudaSide::tell(const gpu_comm::Workspace& workspace, int peer, int tile) {
  check(workspace.arrivals()->tell(peer, tile, view_of(streams_.own())));
}

void CudaSide::await(const gpu_comm::Workspace& workspace, int tile) {
  const std::lock_guard lock(mutex_);
  check(group_->await(*workspace.arrivals(), tile, view_of(streams_.awaiting())));
}

void CudaSide::give_up() noexcept {
  communicator_->abort("a call on CUDA tensors has failed half-way");
}

uint64_t CudaSide::num_zero_copy() const {
  return value_of(group_->num_zero_copy());
}

void CudaSide::start_after_current_stream(WorkOperation& operation) {
  const std::lock_guard lock(mutex_);
  check_health(&operation);
  const c10::StreamGuard on_stream(current_stream());  // and its device
  const c10::Stream stream = on_stream.current_stream();
  if (is_capturing(stream)) {
    throw_value_error("barrier: a CUDA graph cannot capture it: the host waits");
  }
  streams_.note_use(stream);
  open_relay(operation);
  check(operation.relay->enqueue_first(view_of(stream)));
}

}  // namespace axon::c10d_backend
