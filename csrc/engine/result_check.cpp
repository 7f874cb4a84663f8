#include "engine/result_check.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "base/digest.hpp"
#include "engine/engine.hpp"
#include "engine/group_message.hpp"

namespace axon::engine {

// A rank may be as many collectives ahead of another one. Flow control stops it long before.
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

namespace {

// A result on its way to the progress owner. Owns itself.
class NotedResult final : public Submission {
 public:
  NotedResult(std::shared_ptr<ResultCheck> check, ResultCheck::Result result) noexcept
      : check_(std::move(check)), result_(std::move(result)) {}

 private:
  void begin() noexcept override {
    check_->note_now(std::move(result_));
    delete this;
  }
  void complete() noexcept override {}

  const std::shared_ptr<ResultCheck> check_;
  ResultCheck::Result result_;
};

}  // namespace

void ResultCheck::note(std::shared_ptr<ResultCheck> check, Result result) {
  Engine& engine = check->engine_;
  engine.submit_after_completion(*new NotedResult(std::move(check), std::move(result)));
}

void ResultCheck::note_now(Result result) {
  noted_.push_back(std::move(result));
  engine_.wake();
}

Status ResultCheck::tick(sync::Clock::time_point now) {
  take_noted();
  send_entries((team_.rank + 1) % team_.size(), transport::MessageKind::kResultDigests, unsent_);
  unsent_.clear();
  if (!inquiry_) return Status();
  const bool all_known = std::ranges::all_of(inquiry_->digests, [](const auto& digest) { return digest.has_value(); });
  if (!all_known && now < inquiry_->asked_at + kReplyTimeout) return Status();
  Status found = verdict();
  inquiry_.reset();
  return found;
}

void ResultCheck::take_noted() {
  for (Result& result : noted_) {
    const Entry entry = entry_of(result);
    const uint64_t key = key_of(entry);
    if (const auto theirs = theirs_.extract(key)) compare(result, theirs.mapped());
    std::erase_if(queries_, [&](const Query& query) {
      if (!entry.is_of_same_call(query.asked)) return false;
      send_entries(query.source, transport::MessageKind::kResultReply, {entry});
      return true;
    });
    unsent_.push_back(entry);
    own_.insert_or_assign(key, std::move(result));
    order_.push_back(key);
    if (order_.size() <= kMostKept) continue;
    own_.erase(order_.front());
    order_.pop_front();
  }
  noted_.clear();
}

const ResultCheck::Result* ResultCheck::find(const Entry& entry) const noexcept {
  const auto found = own_.find(key_of(entry));
  return found == own_.end() ? nullptr : &found->second;
}

void ResultCheck::compare(const Result& own, uint64_t theirs) {
  if (own.digest == theirs || inquiry_) return;
  inquiry_ = {
      .own = own, .digests = std::vector<std::optional<uint64_t>>(team_.peers.size()), .asked_at = sync::Clock::now()};
  for (int rank = 0; rank < team_.size(); ++rank) {
    send_entries(rank, transport::MessageKind::kResultQuery, {{own.series, own.number, 0}});
  }
  inquiry_->digests[static_cast<size_t>(team_.rank)] = own.digest;
  inquiry_->digests[static_cast<size_t>(previous())] = theirs;
}

void ResultCheck::on_digests(int source, const transport::Payload& payload) {
  if (source != previous()) return;
  take_noted();
  for (const Entry& theirs : entries_of(payload)) {
    if (const Result* const own = find(theirs)) {
      compare(*own, theirs.digest);
    } else if (theirs_.size() < kMostKept) {
      theirs_.insert_or_assign(key_of(theirs), theirs.digest);
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

// "the results of all_reduce #5 (float32[4], SUM) differ: rank 2 has other bits than the other 3 ranks"
Status ResultCheck::verdict() const {
  std::map<uint64_t, std::vector<int>> ranks_of;
  std::vector<int> silent;
  for (int rank = 0; rank < team_.size(); ++rank) {
    const std::optional<uint64_t>& digest = inquiry_->digests[static_cast<size_t>(rank)];
    (digest ? ranks_of[*digest] : silent).push_back(rank);
  }
  const auto most = std::ranges::max_element(ranks_of, {}, [](const auto& each) { return each.second.size(); });
  const size_t num_alike = most->second.size();
  const bool is_majority = 2 * num_alike > team_.peers.size();
  std::vector<int> differing;
  std::string sides;
  for (const auto& [digest, ranks] : ranks_of) {
    if (digest != most->first) differing.insert(differing.end(), ranks.begin(), ranks.end());
    sides += (sides.empty() ? "" : " | ") + list_of(ranks);
  }
  std::ranges::sort(differing);
  const CallRecord& call = inquiry_->own.call;
  std::string text = "the results of " + call.describe();
  if (!call.call_site.empty()) text += ", at " + std::string(call.call_site) + ",";
  if (is_majority) {
    text += " differ: " + list_of(differing) + (differing.size() == 1 ? " has" : " have") +
            " other bits than the other " + std::to_string(num_alike) + " ranks";
  } else {
    text += " differ: " + sides + ". Most ranks do not agree, so it is not known which ones are wrong";
  }
  if (!silent.empty()) text += ". Not known: " + list_of(silent);
  return {ErrorCode::kMismatch, text + " (AXON_CHECK_RESULTS)"};
}

}  // namespace axon::engine
