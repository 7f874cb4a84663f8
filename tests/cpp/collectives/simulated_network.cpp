#include "collectives/simulated_network.hpp"

#include <cstring>
#include <utility>

#include "collectives/allocation_counter.hpp"

namespace axon {
namespace {

// A large payload that waits at its sender.
struct Waiting {
  int sender;
  const std::byte* data;
  size_t num_bytes;
  Completion* completion;
};

struct Event {
  enum class Kind { kDeliver, kComplete } kind;
  MessageHeader header{};
  std::vector<std::byte> bytes{};
  Waiting* waiting = nullptr;
  Completion* completion = nullptr;
  bool failed = false;
};

Status failed_status() {
  return {ErrorCode::kTransport, "injected failure"};
}

}  // namespace

class SimulatedNetwork::Endpoint final : public Transport {
 public:
  Endpoint(SimulatedNetwork& network, int rank) : network_(network), rank_(rank) {}
  ~Endpoint() override {
    for (Event& event : events_) delete event.waiting;
  }

  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return {}; }
  Result<PeerId> add_peer(std::span<const std::byte>, bool) override { return PeerId{0}; }
  void drop_peer(PeerId) noexcept override {}
  int event_fd() const noexcept override { return -1; }
  bool arm() noexcept override { return false; }
  void flush(int) noexcept override {}

  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override {
    const AllocationCounter::Pause pause;
    const uint64_t index = network_.num_sends_++;
    if (index == network_.faults_.kill_at_send) network_.kill(network_.faults_.victim);
    if (index == network_.faults_.fail_at_send || !network_.is_alive(static_cast<int>(peer))) return failed_status();
    Event event{.kind = Event::Kind::kDeliver, .header = header};
    const bool is_eager = payload.num_bytes <= kLargestEager;
    if (is_eager) {
      event.bytes.assign(payload.data, payload.data + payload.num_bytes);
    } else {
      event.waiting = new Waiting{rank_, payload.data, payload.num_bytes, &completion};
    }
    network_.endpoints_[peer]->events_.push_back(std::move(event));
    if (is_eager && network_.seed_ % 2 == 0) return Status();
    if (is_eager) complete(completion, false);
    return std::nullopt;
  }

  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override {
    const AllocationCounter::Pause pause;
    const std::unique_ptr<Waiting> waiting(static_cast<Waiting*>(rendezvous));
    if (!network_.is_alive(waiting->sender)) return failed_status();
    std::memcpy(into.data, waiting->data, waiting->num_bytes);
    network_.endpoints_[static_cast<size_t>(waiting->sender)]->complete(*waiting->completion, false);
    complete(completion, false);
    return std::nullopt;
  }

  void refuse(void* rendezvous) noexcept override {
    const AllocationCounter::Pause pause;
    const std::unique_ptr<Waiting> waiting(static_cast<Waiting*>(rendezvous));
    network_.endpoints_[static_cast<size_t>(waiting->sender)]->complete(*waiting->completion, true);
  }

  unsigned progress() noexcept override {
    const AllocationCounter::Pause pause;
    if (events_.empty()) return 0;
    const size_t index = network_.seed_ == 0 ? 0 : network_.random_() % events_.size();
    const Event event = std::move(events_[index]);
    events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(index));
    const AllocationCounter::Resume resume;
    if (event.kind == Event::Kind::kComplete) {
      event.completion->done(*event.completion, event.failed ? failed_status() : Status());
    } else if (event.waiting != nullptr) {
      receiver_->on_message(event.header, {nullptr, event.waiting->num_bytes, event.waiting});
    } else {
      receiver_->on_message(event.header, {event.bytes.data(), event.bytes.size(), nullptr});
    }
    return 1;
  }

  void complete(Completion& completion, bool failed) {
    events_.push_back({.kind = Event::Kind::kComplete, .completion = &completion, .failed = failed});
  }
  bool is_quiet() const noexcept { return events_.empty(); }

  // This rank is gone: what waits for it fails at its senders.
  void die() {
    for (Event& event : events_) {
      if (event.waiting != nullptr) refuse(std::exchange(event.waiting, nullptr));
    }
    events_.clear();
  }

 private:
  SimulatedNetwork& network_;
  const int rank_;
  Receiver* receiver_ = nullptr;
  std::vector<Event> events_;
};

SimulatedNetwork::SimulatedNetwork(int num_ranks, uint64_t seed)
    : seed_(seed), random_(seed), alive_(static_cast<size_t>(num_ranks), true) {
  for (int rank = 0; rank < num_ranks; ++rank) endpoints_.push_back(std::make_unique<Endpoint>(*this, rank));
}

SimulatedNetwork::~SimulatedNetwork() = default;

Transport& SimulatedNetwork::transport(int rank) noexcept {
  return *endpoints_[static_cast<size_t>(rank)];
}

bool SimulatedNetwork::is_quiet() const noexcept {
  for (size_t rank = 0; rank < endpoints_.size(); ++rank) {
    if (alive_[rank] && !endpoints_[rank]->is_quiet()) return false;
  }
  return true;
}

void SimulatedNetwork::kill(int rank) {
  if (!is_alive(rank)) return;
  alive_[static_cast<size_t>(rank)] = false;
  endpoints_[static_cast<size_t>(rank)]->die();
}

}  // namespace axon
