// Changes a group's members in place: processes join, leave and replace others, while its object stays the same.
//
// Every member gets the same handles, in the order of the new ranks, and a number that is new. Members need no store:
// the handles hold their addresses, and keys that belong to this number. So a process that was given another number
// cannot reach the group. A first barrier of all members proves that each of them has called, and that all have the
// same handles.
#include <algorithm>
#include <memory>
#include <set>

#include "base/log.hpp"
#include "c10d/backend.hpp"
#include "c10d/errors.hpp"
#include "c10d/member_handle.hpp"
#include "engine/instance.hpp"
#include "python/signals.hpp"

namespace axon::c10d_backend {

// The engine must not end before a fork while others hold this process's handle.
struct AxonBackend::Standing {
  explicit Standing(int global_rank)
      : handle(
            MemberHandle{.global_rank = global_rank, .host = own_host_name(), .address = address.address()}.encode()) {}

  const engine::EngineHold hold = engine::hold_instance();
  const engine::StandingAddress address = hold.engine().make_standing_address();
  const std::string handle;
};

const AxonBackend::Standing& AxonBackend::standing() const {
  const std::lock_guard lock(standing_mutex_);
  if (!standing_) {
    const std::vector<uint64_t>& ranks = options_->global_ranks_in_group;
    const auto rank = static_cast<size_t>(rank_);
    standing_ = std::make_shared<const Standing>(rank < ranks.size() ? static_cast<int>(ranks[rank]) : rank_);
  }
  return *standing_;
}

std::string AxonBackend::reconfigure_handle() const {
  return standing().handle;
}

// Up to torch 2.13, c10d declares these as const. C++20 lets a new object take the place of such a member.
static void replace(const int& member, int value) noexcept {
  std::construct_at(const_cast<int*>(&member), value);
}

namespace {
// Gives access to protected members.
struct Group final : c10d::ProcessGroup {
  static void replace_rank(c10d::ProcessGroup& group, int rank, int size) noexcept {
    replace(group.*&Group::rank_, rank);
    replace(group.*&Group::size_, size);
  }
};
}  // namespace

void follow_reconfiguration(c10d::ProcessGroup& group, const c10d::Backend& backend) {
  Group::replace_rank(group, backend.getRank(), backend.getSize());
}

static std::vector<MemberHandle> decode_all(const std::vector<std::string>& handles) {
  std::vector<MemberHandle> members;
  std::set<uint64_t> keys;
  for (size_t rank = 0; rank < handles.size(); ++rank) {
    Result<MemberHandle> member = MemberHandle::decode(handles[rank]);
    const std::string argument = "reconfigure: argument 'handles'[" + std::to_string(rank) + "]: ";
    if (!member.ok())
      throw_value_error(argument + member.status().message() + "; allowed: a group's reconfigure handle");
    if (!keys.insert(member.value().address.key).second) {
      throw_value_error(argument + "it appears twice, " + member.value().describe() +
                        "; allowed: each member's handle once");
    }
    members.push_back(std::move(member).value());
  }
  return members;
}

// FNV-1a. All ranks compare it in their first barrier.
static uint64_t digest_of(const std::vector<std::string>& handles) noexcept {
  uint64_t digest = 0xcbf2'9ce4'8422'2325;
  for (const std::string& handle : handles) {
    for (const char each : handle) digest = (digest ^ static_cast<uint8_t>(each)) * 0x100'0000'01b3;
  }
  return digest;
}

// Returns the members' ranks in the job, for c10d's calls that name these. The result is empty, as for a default group,
// if they are not a subset of one job.
static std::vector<uint64_t> global_ranks_of(const std::vector<MemberHandle>& members) {
  std::vector<uint64_t> ranks;
  for (const MemberHandle& member : members) ranks.push_back(static_cast<uint64_t>(member.global_rank));
  const std::set<uint64_t> distinct(ranks.begin(), ranks.end());
  return distinct.size() == ranks.size() ? ranks : std::vector<uint64_t>();
}

// Operations that are in flight on the CPU fail, here and on the other ranks. Work enqueued on a GPU completes first.
void AxonBackend::leave_members() {
  if (CudaSide* side = cuda_side_.load(std::memory_order_acquire)) side->drain();
  if (CompletionHook* watch = device_watch_.load(std::memory_order_acquire)) watch->drain();
  python::raise_what_signals_raised();
  communicator_->leave("the group is being reconfigured");
  const std::lock_guard lock(cuda_side_mutex_);
  num_launched_by_former_ = 0;
  cuda_side_.store(nullptr, std::memory_order_release);
  owned_cuda_side_.reset();
  suspension_ = Suspension::kNone;
  num_suspensions_ = 0;
}

AxonBackend::WorkPtr AxonBackend::reconfigure_as(int64_t uuid, const std::vector<std::string>& handles,
                                                 std::optional<std::chrono::milliseconds> limit) {
  const std::chrono::milliseconds timeout = limit.value_or(this->timeout());
  check_timeout(timeout);
  if (coalesced_ || estimate_) {
    throw_value_error("reconfigure: within a block of coalesced or estimated calls; allowed: after its end");
  }
  const std::vector<MemberHandle> members = decode_all(handles);
  const Standing& own = standing();
  if (own.hold.engine().is_forked()) throw_failure(engine::Engine::forked());
  const auto is_own = [&](const MemberHandle& member) { return member.address.key == own.address.address().key; };
  const auto found = std::ranges::find_if(members, is_own);
  if (found == members.end()) {
    throw_value_error("reconfigure: argument 'handles' has " + std::to_string(members.size()) +
                      " handles, none of which is this group's own; allowed: the members' handles, this one included");
  }
  if (!used_instances_.insert(uuid).second) {
    throw_value_error("reconfigure: argument 'uuid' is " + std::to_string(uuid) +
                      ", which this group has been given before; allowed: a new number, the same on all members");
  }
  const auto number = static_cast<uint64_t>(uuid);
  const engine::OwnAddress own_address = own.address.in_instance(number);
  engine::GroupSpecification group{
      .name = options_->group_name, .rank = static_cast<int>(found - members.begin()), .addresses = {}};
  for (const MemberHandle& member : members) group.addresses.push_back(member.address.in_instance(number));
  Result<std::unique_ptr<engine::Communicator>> formed = own.hold.engine().form(std::move(group));
  if (!formed.ok()) throw_failure({formed.status().code(), "reconfigure: " + formed.status().message()});
  leave_members();
  take_over(std::move(formed).value(), members);
  return await_members(uuid, members, digest_of(handles), timeout);
}

void AxonBackend::take_over(std::unique_ptr<engine::Communicator> communicator,
                            const std::vector<MemberHandle>& members) {
  replace(rank_, communicator->rank());
  replace(size_, communicator->size());
  if (is_default_group_) {
    log::set_rank(rank_);
  } else {
    options_->global_ranks_in_group = global_ranks_of(members);
  }
  std::shared_ptr<engine::Communicator> former = std::move(communicator);
  {
    const std::lock_guard lock(communicator_mutex_);
    communicator_.swap(former);
  }
  num_reconfigurations_.fetch_add(1, std::memory_order_relaxed);
}

// Not run(): the timeout is this call's own, whatever extends those of operations.
AxonBackend::WorkPtr AxonBackend::await_members(int64_t uuid, const std::vector<MemberHandle>& members, uint64_t digest,
                                                std::chrono::milliseconds timeout) {
  const auto work = make_work({c10d::OpType::BARRIER, "axon:reconfigure"}, {});
  WorkOperation& operation = work->add_operation();
  operation.arguments.kind = transport::OperationKind::kBarrier;
  operation.num_elements = digest;
  work->set_timeout(timeout);
  const auto began = std::chrono::steady_clock::now();
  try {
    work->start(*communicator_);
    work->wait();
    return work;
  } catch (const c10::DistBackendError&) {
    const Status& status = operation.status();
    std::string why = communicator_->failure().message();
    const bool is_own_timeout = operation.sequence() != 0 && std::chrono::steady_clock::now() - began >= timeout;
    if (status.code() == ErrorCode::kTimeout && is_own_timeout) {
      why = "Timed out after " + std::to_string(timeout.count()) + " ms. Every member must call it with uuid " +
            std::to_string(uuid) + " and the same handles in the same order";
      const char* separator = ". Not called by: ";
      for (const int rank : communicator_->missing_from(operation)) {
        why +=
            separator + ("rank " + std::to_string(rank)) + " (" + members[static_cast<size_t>(rank)].describe() + ")";
        separator = ", ";
      }
    } else if (status.code() == ErrorCode::kMismatch) {
      why = "the ranks were given different handles, or the same in another order, for uuid " + std::to_string(uuid) +
            ": " + why;
    }
    const Status failure(status.code(), communicator_->signed_text("reconfigure: " + why));
    communicator_->abort("reconfigure() has failed: " + why);
    throw_failure(failure);
  } catch (...) {
    communicator_->abort("reconfigure() was interrupted");
    throw;
  }
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE

AxonBackend::WorkPtr AxonBackend::reconfigure(const c10d::ReconfigureOptions& options) {
  if (const auto* ordered = std::get_if<std::vector<std::string>>(&options.handles)) {
    return reconfigure_as(options.uuid, *ordered, options.timeout);
  }
  const auto& unordered = std::get<std::unordered_set<std::string>>(options.handles);
  std::vector<std::string> sorted(unordered.begin(), unordered.end());
  std::ranges::sort(sorted);
  return reconfigure_as(options.uuid, sorted, options.timeout);
}

#endif

}  // namespace axon::c10d_backend
