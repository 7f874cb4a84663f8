// Groups made of a group: split_group, which DeviceMesh takes where a device is bound.
#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "c10d/backend.hpp"

namespace axon {

c10::intrusive_ptr<c10d::Backend> AxonBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return nullptr;
  auto own_options = c10::make_intrusive<Options>(options->timeout);  // the given ones are the parent's, in places
  own_options->group_name = options->group_name;
  const std::vector<uint64_t>& parents = options_->global_ranks_in_group;
  for (const int rank : ranks) {
    const auto index = static_cast<size_t>(rank);
    own_options->global_ranks_in_group.push_back(index < parents.size() ? parents[index] : index);
  }
  const std::lock_guard lock(split_mutex_);
  if (auto last = last_split_.lock()) {
    const Options& known = static_cast<const Options&>(*last->getBackendOptions());
    const bool is_same = known.group_name == own_options->group_name &&
                         known.global_ranks_in_group == own_options->global_ranks_in_group;
    if (is_same) return last;
  }
  auto own_store = c10::make_intrusive<c10d::PrefixStore>("split/" + options->group_name, store);
  c10::intrusive_ptr<c10d::Backend> made =
      c10::make_intrusive<AxonBackend>(std::move(own_store), static_cast<int>(own - ranks.begin()),
                                       static_cast<int>(ranks.size()), std::move(own_options));
  last_split_ = c10::weak_intrusive_ptr<c10d::Backend>(made);
  return made;
}

}  // namespace axon
