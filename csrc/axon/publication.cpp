#include "axon/publication.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "axon/deadline.hpp"
#include "base/sync.hpp"
#include "rpc/core/outbound.hpp"

namespace axon::library {

// The message as it was written. It is destroyed with the last of its copies.
struct Publication::Original final : private rpc::Outbound::Listener {
  rpc::Outbound message{*this};
  std::function<void()> callback;

  // Finished when all these calls have ended and tell() has returned, because tell() uses all of them until then.
  void begin(size_t num_calls) noexcept {
    num_references_.fetch_add(1, std::memory_order_relaxed);
    num_unfinished_.store(num_calls + 1, std::memory_order_relaxed);
  }
  void finish_one() noexcept {
    if (num_unfinished_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (callback) callback();
    release();
  }

  bool is_shared() const noexcept { return num_references_.load(std::memory_order_acquire) != 1; }
  void release() noexcept {
    if (num_references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // Returns an owner that keeps the message alive for a reader.
  Owner reader() noexcept {
    num_readers_.fetch_add(1, std::memory_order_relaxed);
    num_references_.fetch_add(1, std::memory_order_relaxed);
    return {this, [](void* original) { static_cast<Original*>(original)->leave(); }};
  }

 private:
  ~Original() = default;
  void on_sent() noexcept override {}  // only its copies are sent

  void leave() noexcept {
    if (num_readers_.fetch_sub(1, std::memory_order_acq_rel) == 1) message.clear();
    release();
  }

  sync::atomic<size_t> num_unfinished_{0};
  sync::atomic<uint32_t> num_readers_{0};
  sync::atomic<uint32_t> num_references_{1};
};

Publication::Publication(std::string_view function) {
  open(function);
}

Publication::Publication(Publication&& other) noexcept
    : original_(std::exchange(other.original_, nullptr)),
      calls_(std::move(other.calls_)),
      num_told_(std::exchange(other.num_told_, 0)),
      callback_(std::move(other.callback_)),
      timeout_(other.timeout_) {}

Publication& Publication::operator=(Publication&& other) noexcept {
  std::swap(original_, other.original_);
  std::swap(calls_, other.calls_);
  std::swap(num_told_, other.num_told_);
  std::swap(callback_, other.callback_);
  std::swap(timeout_, other.timeout_);
  return *this;
}

Publication::~Publication() {
  if (original_ != nullptr) original_->release();
}

// A message that is still being read is left to its readers, and replaced by a new one.
void Publication::open(std::string_view function) {
  if (original_ == nullptr || original_->is_shared()) {
    auto* fresh = new Original;
    fresh->callback = callback_;
    if (original_ != nullptr) original_->release();
    original_ = fresh;
  }
  original_->message.open(function.size() <= rpc::kLongestName ? function : std::string_view());
  num_told_ = 0;
}

Publication::Original& Publication::original() const noexcept {
  if (original_ != nullptr) return *original_;
  std::fprintf(stderr, "torch_axon: a Publication was written or sent after it was moved from\n");
  std::abort();
}

Message Publication::message() noexcept {
  return Message(original().message);
}

void Publication::on_finished(std::function<void()> callback) {
  callback_ = std::move(callback);
  if (original_ != nullptr) original_->callback = callback_;
}

void Publication::tell(std::span<const Peer> peers) {
  Original* const original = &this->original();
  original->message.seal();
  original->begin(peers.size());
  const Owner until_all_are_told = original->reader();
  for (const Peer& peer : peers) {
    if (num_told_ == calls_.size()) {
      calls_.emplace_back(peer, "");
    } else {
      calls_[num_told_].open(peer, "");
    }
    Call& call = calls_[num_told_++];
    call.set_timeout(timeout_);
    call.on_finished([original] { original->finish_one(); });
    call.tell(original->message, original->reader());
  }
  original->finish_one();
}

bool Publication::wait(std::chrono::milliseconds timeout) noexcept {
  const sync::Clock::time_point deadline = deadline_in(timeout);
  for (Call& call : std::span(calls_).first(num_told_)) {
    if (!call.wait(left_until(deadline))) return false;
  }
  return true;
}

bool Publication::finished() const noexcept {
  return std::ranges::all_of(told(), [](const Call& call) { return call.finished(); });
}

bool Publication::released() const noexcept {
  return std::ranges::all_of(told(), [](const Call& call) { return call.released(); });
}

const Status& Publication::status(size_t index) const noexcept {
  static const Status none(ErrorCode::kInvalidArgument, "there is no peer with this index");
  return index < num_told_ ? calls_[index].status() : none;
}

void Publication::cancel() noexcept {
  for (Call& call : std::span(calls_).first(num_told_)) call.cancel();
}

}  // namespace axon::library
