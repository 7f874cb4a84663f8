#include "gpu_comm/workspace/workspace.hpp"

#include <unistd.h>

#include <mutex>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "cuda/capture.hpp"
#include "gpu_comm/attention.hpp"
#include "gpu_comm/control_message.hpp"
#include "ipc/peer_process.hpp"

namespace axon::gpu_comm {

using Offer = Workspace::Offer;

namespace {

// The offers of all ranks.
class Offers final : public HeldOperation {
 public:
  ~Offers() override = default;

  void exchange(const Offer& own, int num_ranks, std::chrono::milliseconds longest) {
    own_ = own;
    all_.resize(static_cast<size_t>(num_ranks));
    input_ = {.data = reinterpret_cast<const std::byte*>(&own_), .num_bytes = sizeof own_};
    for (Offer& offer : all_) {
      outputs_.push_back({.data = reinterpret_cast<std::byte*>(&offer), .num_bytes = sizeof offer});
    }
    arguments.kind = transport::OperationKind::kAllGather;
    arguments.dtype = DataType::kByte;
    arguments.inputs = {&input_, 1};
    arguments.outputs = outputs_;
    num_elements = all_.size() * sizeof(Offer);
    shape.sizes[0] = sizeof(Offer);
    shape.num_dimensions = 1;
    timeout = longest;
  }

  const std::vector<Offer>& all() const noexcept { return all_; }

 private:
  Offer own_;
  std::vector<Offer> all_;
  ConstBuffer input_;
  std::vector<Buffer> outputs_;
};

// Added to the operation's own timeout, after which the engine ends it and names the missing rank.
constexpr std::chrono::seconds kMargin{20};

// A rank that leaves the sequence of operations in the middle ends the group, since the other ranks could only time
// out.
template <typename Operation>
Status complete(engine::Communicator& communicator, const std::shared_ptr<Operation>& operation) {
  operation->keep_alive(operation);
  communicator.start(*operation);
  if (!wait_attentively(communicator, *operation, sync::Clock::now() + operation->timeout + kMargin)) {
    if (!interrupts::are_pending()) return communicator.explain(*operation);
    communicator.abort("a signal has interrupted a call that needs memory of all ranks");
    return interrupts::interrupted();
  }
  return operation->status().clone();
}

// Workspaces that must live until nothing uses them. Never destroyed: that would call CUDA while the process exits.
struct Lingering {
  std::vector<std::unique_ptr<Workspace>> workspaces;
  std::weak_ptr<void> graphs;

  bool may_be_used() const noexcept { return graphs.use_count() > 1; }
};

struct Registry {
  std::mutex mutex;
  std::vector<Lingering> lingering;
};

Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

}  // namespace

Status Workspace::allocate(const engine::Communicator& communicator, const Wish& wish) {
  Result<cuda::SharedMemory> memory = cuda::SharedMemory::allocate(wish.device, wish.num_bytes);
  if (!memory.ok()) return std::move(memory.status());
  Result<FileDescriptor> shared = memory.value().share();
  if (!shared.ok()) return std::move(shared.status());
  Result<std::unique_ptr<Arrivals>> arrivals =
      Arrivals::create({.device = wish.device, .rank = communicator.rank(), .num_ranks = communicator.size()});
  if (!arrivals.ok()) return std::move(arrivals.status());
  own_ = std::move(memory).value();
  shared_ = std::move(shared).value();
  arrivals_ = std::move(arrivals).value();
  return Status();
}

Offer Workspace::offer() const noexcept {
  if (!own_) return {.pid = getpid()};
  return {.num_bytes = own_->num_bytes(), .pid = getpid(), .memory = shared_.get(), .flags = arrivals_->descriptor()};
}

Status Workspace::import(int rank, const Offer& offer, int device) {
  const std::string owner = "rank " + std::to_string(rank);
  if (offer.memory < 0) return {ErrorCode::kResourceExhausted, owner + " has no memory for the workspace"};
  const Result<ipc::PeerProcess> process = ipc::PeerProcess::open(offer.pid);
  if (!process.ok()) return {ErrorCode::kInternal, "the process of " + owner + " cannot be opened"};
  Result<FileDescriptor> shared = process.value().fetch(offer.memory);
  if (!shared.ok()) return std::move(shared.status());
  Result<cuda::SharedMemory> memory = cuda::SharedMemory::import(device, shared.value(), offer.num_bytes);
  if (!memory.ok()) return std::move(memory.status());
  parts_.push_back(std::move(memory).value());
  Result<FileDescriptor> flags = process.value().fetch(offer.flags);
  return flags.ok() ? arrivals_->map(rank, std::move(flags).value()) : std::move(flags.status());
}

Status Workspace::map(std::span<const Offer> offers, int own_rank, int device) {
  for (int rank = 0; rank < static_cast<int>(offers.size()); ++rank) {
    if (rank == own_rank) {
      parts_.push_back(*std::exchange(own_, std::nullopt));
    } else {
      AXON_TRY(import(rank, offers[static_cast<size_t>(rank)], device));
    }
  }
  return Status();
}

// After the vote all ranks have mapped what they need, so the descriptor may be closed.
Result<std::unique_ptr<Workspace>> Workspace::make(engine::Communicator& communicator, const Wish& wish) {
  const cuda::RelaxedCapture beside_captures;
  std::unique_ptr<Workspace> workspace(new Workspace(wish.num_bytes));
  Status state = workspace->allocate(communicator, wish);
  const auto offers = std::make_shared<Offers>();
  offers->exchange(workspace->offer(), communicator.size(), wish.timeout);
  AXON_TRY(complete(communicator, offers));
  if (state.ok()) state = workspace->map(offers->all(), communicator.rank(), wish.device);
  if (!state.ok()) {
    log::info("group '" + communicator.name() + "' has no workspace of " + std::to_string(wish.num_bytes >> 20) +
              " MiB: " + state.message());
  }
  const auto vote = std::make_shared<MinimumVote>();
  vote->cast(state.ok() ? 1 : 0, wish.timeout);
  AXON_TRY(complete(communicator, vote));
  workspace->shared_ = FileDescriptor();
  if (vote->outcome() == 0) workspace.reset();
  return workspace;
}

Status Workspace::reduce(int rank, kernels::ReduceSlotsCall call, cuda::StreamView stream) const {
  call.slots = at(rank);
  call.num_slots = static_cast<int>(parts_.size());
  return reduce_slots(call, stream);
}

void Workspace::let_go(std::vector<std::unique_ptr<Workspace>> workspaces, std::weak_ptr<void> graphs) {
  const cuda::RelaxedCapture beside_captures;
  const std::lock_guard lock(registry().mutex);
  registry().lingering.push_back({.workspaces = std::move(workspaces), .graphs = std::move(graphs)});
  std::erase_if(registry().lingering, [](const Lingering& each) { return !each.may_be_used(); });
}

}  // namespace axon::gpu_comm
