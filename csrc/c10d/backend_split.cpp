// Groups made from groups: split_group (which DeviceMesh calls if a device is bound), merge_remote_group and
// shrink_group.
#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/backend.hpp"
#include "c10d/errors.hpp"

namespace axon::c10d_backend {

// Converts ranks of a group to ranks of the job; the group itself may be a subset of the job.
static std::vector<uint64_t> global_ranks(const std::vector<uint64_t>& parents, const std::vector<int>& ranks) {
  std::vector<uint64_t> global;
  for (const int rank : ranks) {
    const auto index = static_cast<size_t>(rank);
    global.push_back(index < parents.size() ? parents[index] : index);
  }
  return global;
}

c10::intrusive_ptr<c10d::Backend> AxonBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return nullptr;
  auto own_options = c10::make_intrusive<Options>(options->timeout);  // parts of the given options are the parent's
  own_options->group_name = options->group_name;
  own_options->global_ranks_in_group = global_ranks(options_->global_ranks_in_group, ranks);
  return make_once(store, static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                   std::move(own_options));
}

// c10d does not say which ranks of the job the members are, so the new group knows only its own ranks.
c10::intrusive_ptr<c10d::Backend> AxonBackend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                                     const int& rank, const int& size) {
  auto own_options = c10::make_intrusive<Options>(options->timeout);
  own_options->group_name = options->group_name;
  return make_once(store, rank, size, std::move(own_options));
}

c10::intrusive_ptr<c10d::Backend> AxonBackend::shrink(const std::vector<int64_t>& excluded, int flags,
                                                      const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  static constexpr int kAbort = 1;  // torch.distributed's SHRINK_ABORT
  std::vector<int> ranks;
  std::string name = options_->group_name + " without";
  for (int rank = 0; rank < size_; ++rank) {
    if (std::find(excluded.begin(), excluded.end(), rank) == excluded.end()) {
      ranks.push_back(rank);
    } else {
      name.append(" ").append(std::to_string(rank));
    }
  }
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) {
    throw_value_error("shrink_group: rank " + std::to_string(rank_) +
                      " is one of the excluded ranks; allowed: calls by the other ranks");
  }
  if (flags == kAbort) abort();
  auto own_options = c10::make_intrusive<Options>(options ? options->timeout : options_->timeout);
  own_options->group_name = name;
  own_options->global_ranks_in_group = global_ranks(options_->global_ranks_in_group, ranks);
  return c10::make_intrusive<AxonBackend>(c10::make_intrusive<c10d::PrefixStore>(name, store_),
                                          static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
                                          std::move(own_options));
}

c10::intrusive_ptr<c10d::Backend> AxonBackend::make_once(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                         int size, c10::intrusive_ptr<Options> options) {
  const std::lock_guard lock(split_mutex_);
  if (auto last = last_made_.lock(); last && last_store_ == store) {
    const Options& known = static_cast<const Options&>(*last->getBackendOptions());
    const bool is_same =
        known.group_name == options->group_name && known.global_ranks_in_group == options->global_ranks_in_group;
    if (is_same) return last;
  }
  auto own_store = c10::make_intrusive<c10d::PrefixStore>("made of groups/" + options->group_name, store);
  c10::intrusive_ptr<c10d::Backend> made =
      c10::make_intrusive<AxonBackend>(std::move(own_store), rank, size, std::move(options));
  last_made_ = c10::weak_intrusive_ptr<c10d::Backend>(made);
  last_store_ = store;
  return made;
}

}  // namespace axon::c10d_backend
