#include "engine/result_check.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "base/digest.hpp"
#include "engine/engine.hpp"
#include "engine/group_message.hpp"

namespace axon::engine {

// Ranks may be as many collectives apart. Flow control stops them long before.
static constexpr size_t kMostKept = 4096;
// Their entries fit into one control message.
static constexpr size_t kMostSentAtOnce = 256;
static constexpr std::chrono::milliseconds kReplyTimeout{300};
static constexpr size_t kMostRanksListed = 16;

ResultCheck::ResultCheck(Engine& engine, const messaging::Team& team) : engine_(engine), team_(team) {
  static_assert(sizeof(Entry) == 16 && std::has_unique_object_representations_v<Entry>);
}

bool ResultCheck::covers(transport::OperationKind kind) noexcept {
  using enum transport::OperationKind;
  return kind == kAllReduce || kind == kBroadcast || kind == kAllGather;
}

uint64_t ResultCheck::digest_of(const collectives::CollectiveArguments& arguments) noexcept {
  uint64_t digest = 0;
  uint64_t first_index = 0;
  for (const Buffer& output : arguments.outputs) {
    digest += axon::digest_of(output.data, output.num_bytes, first_index);
    first_index += kWordsOfAPart;
  }
  return digest;
}

void ResultCheck::note(Result result) {
  const std::lock_guard lock(mutex_);
  noted_.push_back(std::move(result));
  if (!has_noted_.exchange(true, std::memory_order_relaxed)) engine_.wake();
}

Status ResultCheck::tick(sync::Clock::time_point now) {
  take_noted();
  const int next = (team_.rank + 1) % team_.size();
  send_entries(next, transport::MessageKind::kResultDigests, unsent_);
  unsent_.clear();
  if (!inquiry_) return Status();
  const bool all_known = std::ranges::all_of(inquiry_->digests, [](const auto& digest) { return digest.has_value(); });
  if (!all_known && now < inquiry_->asked_at + kReplyTimeout) return Status();
  Status found = verdict();
  inquiry_.reset();
  return found;
}

void ResultCheck::take_noted() {
  std::vector<Result> noted;
  {
    const std::lock_guard lock(mutex_);
    noted.swap(noted_);
    has_noted_.store(false, std::memory_order_relaxed);
  }
  for (Result& result : noted) {
    const Entry entry = entry_of(result);
    const auto is_it = [&](const auto& other) { return entry.is_of_same_call(other); };
    if (const auto theirs = std::ranges::find_if(theirs_, is_it); theirs != theirs_.end()) {
      compare(result, *theirs);
      theirs_.erase(theirs);
    }
    std::erase_if(queries_, [&](const Query& query) {
      if (!is_it(query.asked)) return false;
      send_entries(query.source, transport::MessageKind::kResultReply, {entry});
      return true;
    });
    unsent_.push_back(entry);
    own_.push_back(std::move(result));
    if (own_.size() > kMostKept) own_.pop_front();
  }
}

// Searches from the latest, which it usually is.
const ResultCheck::Result* ResultCheck::find(const Entry& entry) const noexcept {
  const auto found =
      std::find_if(own_.rbegin(), own_.rend(), [&](const Result& own) { return entry.is_of_same_call(entry_of(own)); });
  return found == own_.rend() ? nullptr : &*found;
}

void ResultCheck::compare(const Result& own, const Entry& theirs) {
  if (own.digest == theirs.digest || inquiry_) return;
  inquiry_ = {
      .own = own, .digests = std::vector<std::optional<uint64_t>>(team_.peers.size()), .asked_at = sync::Clock::now()};
  for (int rank = 0; rank < team_.size(); ++rank) {
    send_entries(rank, transport::MessageKind::kResultQuery, {{own.series, own.number, 0}});
  }
  inquiry_->digests[static_cast<size_t>(team_.rank)] = own.digest;
}

void ResultCheck::on_digests(int source, const transport::Payload& payload) {
  if (source != (team_.rank + team_.size() - 1) % team_.size()) return;
  take_noted();
  for (const Entry& theirs : entries_of(payload)) {
    if (const Result* const own = find(theirs)) {
      compare(*own, theirs);
    } else {
      theirs_.push_back(theirs);
      if (theirs_.size() > kMostKept) theirs_.pop_front();
    }
  }
}

void ResultCheck::on_query(int source, const transport::Payload& payload) {
  take_noted();
  for (const Entry& asked : entries_of(payload)) {
    if (const Result* const own = find(asked)) {
      send_entries(source, transport::MessageKind::kResultReply, {entry_of(*own)});
    } else if (queries_.size() < kMostKept) {
      queries_.push_back({source, asked});
    }
  }
}

void ResultCheck::on_reply(int source, const transport::Payload& payload) {
  for (const Entry& theirs : entries_of(payload)) {
    if (!inquiry_ || !theirs.is_of_same_call(entry_of(inquiry_->own))) continue;
    inquiry_->digests[static_cast<size_t>(source)] = theirs.digest;
  }
}

std::vector<ResultCheck::Entry> ResultCheck::entries_of(const transport::Payload& payload) {
  const size_t count = payload.bytes == nullptr ? 0 : std::min(payload.num_bytes / sizeof(Entry), kMostSentAtOnce);
  std::vector<Entry> entries(count);
  if (count != 0) std::memcpy(entries.data(), payload.bytes, count * sizeof(Entry));
  return entries;
}

void ResultCheck::send_entries(int destination, transport::MessageKind kind, const std::vector<Entry>& entries) {
  for (size_t begin = 0; begin < entries.size(); begin += kMostSentAtOnce) {
    const size_t count = std::min(entries.size() - begin, kMostSentAtOnce);
    send(engine_.messenger(), team_, destination,
         {.kind = kind, .text = {reinterpret_cast<const char*>(entries.data() + begin), count * sizeof(Entry)}});
  }
}

static std::string list_of(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMostRanksListed); ++i) {
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(ranks[i]);
  }
  return ranks.size() <= kMostRanksListed ? text
                                          : text + ", and " + std::to_string(ranks.size() - kMostRanksListed) + " more";
}

// "the result of all_reduce #5 (float32[4], SUM) on rank 2 has other bits than those of the 3 other ranks"
Status ResultCheck::verdict() const {
  std::map<uint64_t, size_t> votes;
  for (const auto& digest : inquiry_->digests) votes[digest.value_or(0)] += digest.has_value();
  const auto most = std::ranges::max_element(votes, {}, [](const auto& each) { return each.second; });
  std::vector<int> differing;
  std::vector<int> silent;
  size_t num_known = 0;
  for (int rank = 0; rank < team_.size(); ++rank) {
    const auto& digest = inquiry_->digests[static_cast<size_t>(rank)];
    if (!digest) silent.push_back(rank);
    num_known += digest.has_value();
    if (digest && *digest != most->first) differing.push_back(rank);
  }
  const CallRecord& call = inquiry_->own.call;
  std::string text = "the results of " + call.describe();
  if (!call.call_site.empty()) text += ", at " + std::string(call.call_site) + ",";
  if (2 * most->second > num_known) {
    text += " differ: " + list_of(differing) + (differing.size() == 1 ? " has" : " have") +
            " other bits than the other " + std::to_string(most->second) + " ranks";
  } else {
    text += " differ: " + list_of(differing) + (differing.size() == 1 ? " has" : " have") +
            " other bits than the others, and most ranks do not agree, so it is not known which ones are wrong";
  }
  if (!silent.empty()) text += ". Not known: " + list_of(silent);
  return {ErrorCode::kMismatch, text + " (AXON_CHECK_RESULTS)"};
}

}  // namespace axon::engine
