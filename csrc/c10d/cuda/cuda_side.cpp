#include "c10d/cuda_side.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/log.hpp"
#include "c10d/errors.hpp"
#include "c10d/shelf.hpp"
#include "cuda/capture.hpp"
#include "cuda/stream.hpp"
#include "stream/device_group.hpp"
#include "stream/staging.hpp"

namespace axon {

namespace {

void check(const Status& status) {
  if (!status.ok()) throw_failure(status);
}

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw_failure(result.status());
  return std::move(result).value();
}

c10::impl::VirtualGuardImpl torch_cuda() {
  return c10::impl::VirtualGuardImpl(at::kCUDA);
}

StreamView view_of(c10::Stream stream) {
  return StreamView(static_cast<cudaStream_t>(stream.native_handle()));
}

// Work of `later` from here on waits for all that `earlier` has now.
void order(c10::Stream earlier, c10::Stream later) {
  c10::Event passed(at::kCUDA);
  passed.record(earlier);
  passed.block(later);
}

OutputAccess access_of(const Part& part, int rank) {
  const CollectiveArguments& arguments = part.arguments;
  switch (arguments.kind) {
    case OperationKind::kAllReduce:
      return {.read = true, .written = true};
    case OperationKind::kBroadcast:
      return {.read = arguments.root == rank, .written = arguments.root != rank};
    case OperationKind::kReduce:
      return {.read = false, .written = arguments.root == rank};
    default:
      return {.read = false, .written = true};
  }
}

}  // namespace

CudaSide::CudaSide(std::shared_ptr<Communicator> communicator, at::Device device, std::chrono::milliseconds timeout)
    : communicator_(std::move(communicator)),
      device_(device),
      own_stream_(torch_cuda().getStreamFromGlobalPool(device, /*isHighPriority=*/true)),
      group_(value_of(DeviceGroup::form(*communicator_, device.index(), timeout))) {}

CudaSide::~CudaSide() {
  drain();
}

void CudaSide::drain() noexcept {
  try {
    torch_cuda().synchronizeDevice(device_.index());
    note_fault();
    Shelf::instance().clear();
  } catch (const std::exception&) {
    log::info("CUDA has failed, or is gone since the process exits: what was enqueued is lost");
  }
}

c10::Stream CudaSide::current_stream() const {
  return torch_cuda().getStream(device_);
}

// Neither a kernel nor the engine can throw: what went wrong since the last call is told now.
void CudaSide::check_health() {
  note_fault();
  late_failure_->rethrow();
  if (communicator_->is_broken()) check(communicator_->failure());
}

void CudaSide::note_fault() {
  const Status fault = group_->fault();
  if (!fault.ok()) late_failure_->note(to_exception(fault));
}

void CudaSide::enqueue(AxonWork& work, Mode mode) {
  const std::lock_guard lock(mutex_);
  check_health();
  work.report_to(late_failure_);
  const PartList parts = work.parts();
  const c10::Stream current = current_stream();
  const bool captured = value_of(is_capturing(view_of(current)));
  if (!captured) {
    const RelaxedCapture beside_captures;  // of other threads
    Shelf::instance().clear();
  }
  const c10::Stream stream = stream_for(parts, mode);
  if (stream != current) order(current, stream);
  {
    const c10::StreamGuard on_stream(stream);
    enqueue_parts(parts, stream);
  }
  if (mode == Mode::kAsynchronous) work.run_on({.stream = stream, .captured = captured});
}

c10::Stream CudaSide::stream_for(const PartList& parts, Mode mode) {
  const Part& first = *parts.front();
  if (first.direction != Direction::kCollective) return stream_of({first.peer, first.direction});
  return mode == Mode::kAsynchronous ? own_stream_ : current_stream();
}

c10::Stream CudaSide::stream_of(Edge edge) {
  const auto known = edge_streams_.find(edge);
  if (known != edge_streams_.end()) return known->second;
  return edge_streams_.emplace(edge, torch_cuda().getStreamFromGlobalPool(device_, true)).first->second;
}

// Kernels match the messages between two ranks in order, the host engine by their tags.
bool CudaSide::has_kernel(const Part& part) {
  if (part.direction == Direction::kCollective) return value_of(group_->has_all_edges()) && group_->serves(part);
  if (part.tag != 0 || part.peer == communicator_->rank()) return false;
  if (part.peer == kAnyRank) {
    throw_value_error(
        "recv: argument 'src' is None, for any rank; allowed with CUDA tensors: a rank of the group, or any rank with "
        "a "
        "tag other than 0");
  }
  return value_of(group_->has_edge(part.peer)) && group_->serves(part);
}

void CudaSide::enqueue_parts(const PartList& parts, c10::Stream stream) {
  PartList launched;
  PartList staged;
  for (Part* part : parts) {
    part->seal();
    (has_kernel(*part) ? launched : staged).push_back(part);
  }
  if (!staged.empty() && value_of(is_capturing(view_of(stream)))) {
    throw_value_error(staged.front()->describe() +
                      ": goes through the host here, which a CUDA graph cannot capture: no kernel serves this type and "
                      "operation, or the GPUs of the group do not reach each other");
  }
  // Everything is started before anything is waited for.
  for (Part* part : staged) stage(*part, stream);
  launch(launched, stream);
  for (Part* part : staged) check(part->staging->copy_out(view_of(stream)));
  for (Part* part : parts) part->copy_back();
}

void CudaSide::launch(const PartList& parts, c10::Stream stream) {
  c10::SmallVector<const Operation*, 4> messages;
  c10::SmallVector<c10::Stream, 4> others;  // of the other edges, whose earlier messages come first
  for (const Part* part : parts) {
    if (part->direction == Direction::kCollective) {
      check(group_->launch(*part, view_of(stream)));
      num_launched_.fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    messages.push_back(part);
    const c10::Stream other = stream_of({part->peer, part->direction});
    if (other != stream) others.push_back(other);
  }
  if (messages.empty()) return;
  // Within a graph the edges of its own launches are in order anyway, and nothing outside may be waited for.
  if (value_of(is_capturing(view_of(stream)))) others.clear();
  for (const c10::Stream other : others) order(other, stream);
  check(group_->launch_batch({messages.data(), messages.size()}, view_of(stream)));
  for (const c10::Stream other : others) order(stream, other);
}

void CudaSide::stage(Part& part, c10::Stream stream) {
  part.staging = std::make_shared<Staging>(value_of(Staging::open({.inputs = part.arguments.inputs,
                                                                   .outputs = part.arguments.outputs,
                                                                   .access = access_of(part, communicator_->rank())})));
  check(part.staging->copy_in(view_of(stream)));
  part.arguments.inputs = part.staging->inputs();
  part.arguments.outputs = part.staging->outputs();
  part.gate = &part.staging->gate();
  part.done_word = &part.staging->done();
  part.start(*communicator_);
}

void CudaSide::gate(Part& part) {
  check_health();
  const c10::StreamGuard on_stream(current_stream());  // and its device
  part.staging = std::make_shared<Staging>(value_of(Staging::open({})));
  check(part.staging->copy_in(view_of(on_stream.current_stream())));
  part.gate = &part.staging->gate();
}

}  // namespace axon
