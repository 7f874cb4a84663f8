#include "c10d/backend.hpp"

#include <ATen/record_function.h>

#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include "base/trace.hpp"
#include "c10d/bootstrap.hpp"
#include "c10d/call_site.hpp"
#include "c10d/errors.hpp"
#include "collectives/selector.hpp"
#include "python/gil.hpp"
#include "python/signals.hpp"

namespace axon::c10d_backend {

AxonBackend::AxonBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      options_(std::move(options)),
      store_(store),
      is_default_group_(options_->global_ranks_in_group.empty()),
      timeout_(options_->timeout),
      refuses_nans_(are_nan_checks_on()) {
  check_timeout(options_->timeout);
  const std::vector<uint64_t>& ranks = options_->global_ranks_in_group;  // empty for the default group
  const Membership membership{.group = options_->group_name,
                              .rank = rank,
                              .global_rank = ranks.empty() ? rank : static_cast<int>(ranks.at(rank)),
                              .size = size,
                              .timeout = options_->timeout};
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  const bool waits_for_members = options_->enable_reconfigure;
#else
  const bool waits_for_members = false;
#endif
  communicator_ = waits_for_members ? form_without_members(membership) : join(*store_, membership);
  init();
}

// A running Work::wait() holds a reference to the communicator. Closing ends it with an error instead of letting it
// wait for ever. Other calls need the GIL to get here. If DDP's reducer is the last owner, it arrives with the GIL
// held.
AxonBackend::~AxonBackend() {
  const python::GilReleasedIfHeld no_gil;
  owned_cuda_side_.reset();  // first waits for what is enqueued
  owned_device_watch_.reset();
  communicator_->close();
  owned_completion_hook_.reset();  // now every call has finished
  python::raise_soon_what_signals_raised();
}

c10::intrusive_ptr<AxonWork> AxonBackend::make_work(const Call& call, const TensorList& tensors) const {
  if (C10_UNLIKELY(coalesced_ != nullptr)) return coalesced_;
  const AxonWork::Call named{.type = call.type, .title = call.title, .rank = rank_};
  auto work = C10_LIKELY(!at::hasCallbacks()) ? c10::make_intrusive<AxonWork>(communicator_, named)
                                              : c10::make_intrusive<AxonWork>(communicator_, named, tensors);
  if (C10_UNLIKELY(refuses_nans_)) work->list_inputs_to_check();
  return work;
}

WorkOperation& AxonBackend::add_operation(AxonWork& work, transport::OperationKind kind,
                                          const at::Tensor& representative) const {
  WorkOperation& operation = work.add_operation();
  operation.arguments.kind = kind;
  operation.arguments.dtype = to_data_type(representative.scalar_type());
  operation.shape = to_shape(representative);
  return operation;
}

// Finding the call site takes the GIL and 2 µs (docs/observing.md), so the user has to enable it.
static bool wants_call_sites() noexcept {
  return c10d::debug_level() != c10d::DebugLevel::Off || trace::is_on();
}

AxonBackend::WorkPtr AxonBackend::run(c10::intrusive_ptr<AxonWork> work, const Call& call, const Mode& mode) {
  if (C10_UNLIKELY(coalesced_ != nullptr)) return nullptr;
  if (C10_UNLIKELY(estimate_.has_value())) return estimate(std::move(work), mode);
  if (C10_UNLIKELY(work->inputs_to_check() != nullptr)) refuse_nans(*work->inputs_to_check(), rank_);
  const bool unset = mode.timeout == c10d::kUnsetTimeout;
  if (mode.asynchronous) work->keep_memory();
  std::chrono::milliseconds timeout = unset ? timeout_.load(std::memory_order_relaxed) : mode.timeout;
  if (C10_UNLIKELY(ephemeral_timeouts_.are_any())) timeout += ephemeral_timeouts_.for_work(work);
  work->set_timeout(timeout);
  if (C10_UNLIKELY(abort_hooks_->are_any())) work->call_at_failure(abort_hooks_);
  if (C10_UNLIKELY(wants_call_sites())) work->set_call_site(interned_call_site());
  if (C10_UNLIKELY(success_hooks_->are_any())) work->report_success_to(success_hooks_);
  const bool is_watched = work->reports_success() && !work->device().is_cpu();
  if (C10_UNLIKELY(is_watched || is_timed_.load(std::memory_order_relaxed))) work->take_times();
  if (C10_LIKELY(!at::hasCallbacks())) {
    start(*work, mode);
  } else {
    // For profilers and execution traces, the record spans the start only, as with NCCL.
    start_recorded(*work, call, mode);
  }
  if (C10_UNLIKELY(work->times() != nullptr)) note_times(*work, call);
  if (mode.asynchronous) return work;
  if (work->device().is_cpu()) work->wait();
  // Completion hooks identify a call by the key of its Work, so it is returned even from a synchronous call.
  return work->reports_success() ? WorkPtr(std::move(work)) : nullptr;
}

void AxonBackend::start(AxonWork& work, const Mode& mode) {
  if (C10_LIKELY(work.device().is_cpu())) return work.start(*communicator_);
  const auto timing = mode.asynchronous ? CudaSide::Timing::kAsynchronous : CudaSide::Timing::kSynchronous;
  try {
    cuda_side(work.device()).enqueue(work, timing);
  } catch (const c10::DistBackendError&) {
    abort_hooks_->run();
    throw;
  }
}

CudaSide& AxonBackend::cuda_side(at::Device device) {
  CudaSide* side = cuda_side_.load(std::memory_order_acquire);
  if (C10_UNLIKELY(side == nullptr)) {
    const std::lock_guard lock(cuda_side_mutex_);
    if (suspension_ != Suspension::kNone) {
      throw_value_error("axon: the group is suspended, and the tensors are on " + device.str() +
                        "; allowed: tensors on the CPU, until all ranks have called resume() on its backend");
    }
    if (!owned_cuda_side_) {
      const std::chrono::milliseconds timeout = timeout_.load(std::memory_order_relaxed);
      owned_cuda_side_ = std::make_unique<CudaSide>(communicator_, device, timeout, num_suspensions_);
    }
    side = owned_cuda_side_.get();
    cuda_side_.store(side, std::memory_order_release);
  }
  if (C10_LIKELY(side->device() == device)) return *side;
  throw_value_error("axon: tensors are on " + device.str() + "; allowed: " + side->device().str() +
                    ", which this rank has used in the group before");
}

bool AxonBackend::has_cuda_side(uint64_t serial) const noexcept {
  const CudaSide* side = cuda_side_.load(std::memory_order_acquire);
  return side != nullptr && side->serial() == serial;
}

static int64_t count(const TensorList& tensors) {
  int64_t num_elements = 0;
  for (const at::Tensor& tensor : tensors) num_elements += tensor.numel();
  return num_elements;
}

void AxonBackend::start_recorded(AxonWork& work, const Call& call, const Mode& mode) {
  const TensorList inputs = work.inputs();
  const TensorList outputs = work.outputs();
  const TensorList& described = inputs.empty() ? outputs : inputs;
  const at::ScalarType dtype = described.empty() ? at::kByte : described.front().scalar_type();
  const std::vector<uint64_t>& ranks = options_->global_ranks_in_group;
  const int first = ranks.empty() ? 0 : static_cast<int>(ranks.front());
  const int stride = ranks.size() < 2 ? 1 : static_cast<int>(ranks[1] - ranks[0]);
  RECORD_PARAM_COMMS_DATA(static_cast<int64_t>(getSequenceNumberForGroup()) + 1, std::make_tuple(pg_uid_, pg_desc_),
                          inputs, outputs, rank_, call.name(), count(inputs), count(outputs), dtype,
                          std::vector<int64_t>(), std::vector<int64_t>(), first, stride, size_);
  start(work, mode);
}

static constexpr const char* kCoalescedTitle = "axon:coalesced";

// Drops the collected calls of an earlier exception within torch's coalescing manager (torch_axon/_compat.py).
void AxonBackend::startCoalescing() {
  coalesced_.reset();
  coalesced_ = make_work({c10d::OpType::COALESCED, kCoalescedTitle}, {});
}

AxonBackend::WorkPtr AxonBackend::endCoalescing() {
  if (!coalesced_) throw_value_error("axon: endCoalescing() without startCoalescing()");
  return run(std::move(coalesced_), {c10d::OpType::COALESCED, kCoalescedTitle},
             {.asynchronous = true, .timeout = c10d::kUnsetTimeout});
}

void AxonBackend::setTimeout(std::chrono::milliseconds timeout) {
  check_timeout(timeout);
  options_->timeout = timeout;
  timeout_.store(timeout, std::memory_order_relaxed);
}

uint64_t AxonBackend::getSequenceNumberForGroup() {
  const CudaSide* side = cuda_side_.load(std::memory_order_acquire);
  const uint64_t num_launched_by_former = num_launched_by_former_.load(std::memory_order_relaxed);
  return current_communicator()->num_started() + num_launched_by_former + (side != nullptr ? side->num_launched() : 0);
}

uint64_t AxonBackend::num_zero_copy() {
  const CudaSide* side = cuda_side_.load(std::memory_order_acquire);
  return side != nullptr ? side->num_zero_copy() : 0;
}

AxonBackend::Path AxonBackend::path_to(int rank) {
  check_rank({"path_to", "rank"}, rank, size_);
  Result<engine::PeerPath> host = communicator_->path_to(rank);
  if (!host.ok()) throw_failure(host.status());
  Path path{.host = std::move(host).value(), .gpu = std::nullopt};
  CudaSide* side = cuda_side_.load(std::memory_order_acquire);
  if (side != nullptr && rank != rank_) path.gpu = side->path_to(rank);
  return path;
}

bool AxonBackend::has_peer_access(at::Device device, int rank) {
  return cuda_side(device).has_link(rank);
}

std::vector<AxonBackend::Selected> AxonBackend::selected(size_t num_bytes) {
  const CudaSide* side = cuda_side_.load(std::memory_order_acquire);
  std::vector<Selected> all;
  for (const transport::OperationKind kind : collectives::kOperations) {
    collectives::Choice choice;
    if (kind != transport::OperationKind::kPointToPoint) {
      choice.algorithm = communicator_->algorithm_for(kind, num_bytes).name;
    }
    if (side != nullptr) choice.kernel = side->kernel_for(kind, num_bytes);
    all.push_back({kind, choice});
  }
  return all;
}

c10d::ErrorType AxonBackend::getError() {
  const Status failure = current_communicator()->failure();
  if (failure.ok()) return c10d::ErrorType::SUCCESS;
  switch (failure.code()) {
    case ErrorCode::kTimeout:
      return c10d::ErrorType::TIMEOUT;
    case ErrorCode::kPeerLost:
    case ErrorCode::kMismatch:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void AxonBackend::abort() {
  abort_hooks_->run();
  current_communicator()->abort("the process group was aborted");
}

// Does not communicate: the other ranks may have exited.
void AxonBackend::shutdown() {
  if (CudaSide* side = cuda_side_.load(std::memory_order_acquire)) side->drain();
  if (CompletionHook* watch = device_watch_.load(std::memory_order_acquire)) watch->drain();
  communicator_->close();
  const std::lock_guard lock(standing_mutex_);
  standing_.reset();  // so that the engine can end before a fork
  python::raise_what_signals_raised();
}

// May be called again if it failed half-way, for example because a rank was late.
void AxonBackend::suspend() {
  if (CudaSide* side = cuda_side_.load(std::memory_order_acquire)) side->finish();  // may run signal handlers
  {
    const std::lock_guard lock(cuda_side_mutex_);
    if (suspension_ == Suspension::kWhole) return;
    if (suspension_ == Suspension::kNone) ++num_suspensions_;
    suspension_ = Suspension::kHalf;
    if (owned_cuda_side_) num_launched_by_former_ += owned_cuda_side_->num_launched();
    cuda_side_.store(nullptr, std::memory_order_release);
    owned_cuda_side_.reset();
  }
  c10d::BarrierOptions synchronous;
  synchronous.asyncOp = false;
  barrier(synchronous);  // until then, kernels of other ranks may use this rank's memory
  give_back_arenas();
  const std::lock_guard lock(cuda_side_mutex_);
  suspension_ = Suspension::kWhole;
}

void AxonBackend::resume() {
  const std::lock_guard lock(cuda_side_mutex_);
  if (suspension_ == Suspension::kHalf) {
    throw_value_error("resume: suspend() has failed half-way; allowed: suspend() again, on all ranks, then resume()");
  }
  suspension_ = Suspension::kNone;
}

std::unordered_map<std::string, uint64_t> AxonBackend::getMemoryStats() {
  const std::lock_guard lock(cuda_side_mutex_);
  const CudaSide::Memory memory = owned_cuda_side_ ? owned_cuda_side_->memory() : CudaSide::Memory();
  return {{"arena", memory.arena}, {"block", memory.slice}, {"workspaces", memory.workspaces}};
}

}  // namespace axon::c10d_backend
