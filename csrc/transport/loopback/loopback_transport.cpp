#include "transport/loopback/loopback_transport.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "transport/nack.hpp"

namespace axon::transport {

static constexpr size_t kMostParcelsARound = 64;

static std::string name_of(uint32_t process) {
  return "process " + std::to_string(process);
}

static Status failure(const char* what, uint64_t number) {
  return {ErrorCode::kTransport, std::string(what) + " " + std::to_string(number) + " failed as planned"};
}

LoopbackTransport::LoopbackTransport(LoopbackFabric& fabric, Mailbox& mailbox, uint32_t process)
    : fabric_(fabric), mailbox_(mailbox), process_(process) {}

LoopbackTransport::~LoopbackTransport() {
  const std::lock_guard lock(fabric_.mutex_);
  const Status gone(ErrorCode::kPeerLost, name_of(process_) + " has closed its transport");
  mailbox_.closed = true;
  for (const WaitingSend* waiting : mailbox_.waiting_sends()) end(*waiting, gone.clone());
  for (const Fetching& fetching : fetching_) end(*fetching.waiting, gone.clone());
  mailbox_.clear();
}

Result<PeerId> LoopbackTransport::add_peer(std::span<const std::byte> address, bool same_host) {
  const std::lock_guard lock(fabric_.mutex_);
  uint32_t process = 0;
  if (address.size() != sizeof process)
    return Status(ErrorCode::kInvalidArgument, "not an address of a loopback transport");
  std::memcpy(&process, address.data(), sizeof process);
  if (process >= fabric_.mailboxes_.size()) return Status(ErrorCode::kInvalidArgument, "no " + name_of(process));
  peers_.push_back({process});
  if (same_host) connect(peers_.back());
  return static_cast<PeerId>(peers_.size() - 1);
}

Status LoopbackTransport::watch_peer(PeerId peer) noexcept {
  const std::lock_guard lock(fabric_.mutex_);
  connect(peers_[peer]);
  return Status();
}

// Each of the two is told of the other's loss from now on.
void LoopbackTransport::connect(const Peer& peer) {
  if (peer.process == process_ || !mailbox_.connected.insert(peer.process).second) return;
  Mailbox& other = fabric_.mailboxes_[peer.process];
  other.connected.insert(process_);
  if (other.dead) fabric_.tell_loss(mailbox_, peer.process);
}

// Counts a step, and kills the process if the plan says so. Returns whether the process is still alive.
bool LoopbackTransport::step() {
  if (mailbox_.dead) return false;
  ++mailbox_.num_steps;
  for (const FaultPlan::Kill& kill : fabric_.plan_.kills) {
    if (kill.process == process_ && kill.step == mailbox_.num_steps) fabric_.kill_held(process_);
  }
  return !mailbox_.dead;
}

std::optional<Status> LoopbackTransport::send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                              Completion& completion) noexcept {
  const bool eager = payload.num_bytes <= fabric_.plan_.largest_eager_num_bytes;
  return send_by(eager ? Protocol::kEager : Protocol::kRendezvous, peer, header, payload, completion);
}

std::optional<Status> LoopbackTransport::send_by(Protocol protocol, PeerId peer, const MessageHeader& header,
                                                 ConstBuffer payload, Completion& completion) noexcept {
  const FaultPlan& plan = fabric_.plan_;
  {
    const std::lock_guard lock(fabric_.mutex_);
    if (!step()) return std::nullopt;
    const Outgoing message{protocol, peer, header, payload, &completion, ++fabric_.num_sends_};
    if (message.number == plan.failing_send && !plan.fails_late) return failure("send", message.number);
    if (peers_[peer].dropped) {
      return Status(ErrorCode::kPeerLost, name_of(peers_[peer].process) + " has been given up");
    }
    if (message.number == plan.failing_send || mailbox_.chance(plan.pending)) {
      outgoing_.push_back(message);
      return std::nullopt;
    }
    // A process's message to itself is delivered at once, from within send(), as UCX does.
    const bool in_order = plan.delay == 0 && plan.reorder == 0 && plan.holds.empty();
    const bool at_once = peers_[peer].process == process_ && protocol == Protocol::kEager && in_order;
    if (!at_once) return post(message);
  }
  receiver_->on_message(header, {.bytes = payload.data, .num_bytes = payload.num_bytes});
  return Status();
}

bool LoopbackTransport::corrupts(const Outgoing& message) noexcept {
  const uint64_t first = fabric_.plan_.corrupting_send;
  const bool is_one = first != 0 && message.number >= first && message.payload.num_bytes != 0 &&
                      family_of(message.header.kind) == MessageFamily::kOperation;
  return is_one && !std::exchange(fabric_.has_corrupted_, true);
}

std::optional<Status> LoopbackTransport::post(const Outgoing& message) {
  const ConstBuffer& payload = message.payload;
  connect(peers_[message.peer]);
  Mailbox& target = fabric_.mailboxes_[peers_[message.peer].process];
  if (target.closed) return Status(ErrorCode::kPeerLost, name_of(peers_[message.peer].process) + " is gone");
  const bool eager = message.protocol == Protocol::kEager;
  if (target.dead || target.wedged) return eager ? std::optional(Status()) : std::nullopt;  // no process will fetch it
  if (target.parcels.size() >= fabric_.plan_.mailbox_capacity) {
    outgoing_.push_back(message);
    return std::nullopt;
  }
  ArrivingMessage arriving{.header = message.header, .bytes = {}, .waiting = {}};
  if (eager) {
    arriving.bytes.assign(payload.data, payload.data + payload.num_bytes);
    if (corrupts(message)) arriving.bytes.back() ^= std::byte{1};
  } else {
    ++mailbox_.num_unfetched;
    arriving.waiting = std::make_unique<WaitingSend>(WaitingSend{process_, payload, message.completion});
  }
  target.put({.content = std::move(arriving)}, fabric_.plan_, message.number);
  return eager ? std::optional(Status()) : std::nullopt;
}

std::optional<Status> LoopbackTransport::fetch(void* rendezvous, Buffer into, Completion& completion) noexcept {
  const std::lock_guard lock(fabric_.mutex_);
  if (!step()) return std::nullopt;
  auto held = mailbox_.held.extract(rendezvous);
  if (held.empty())
    return Status(ErrorCode::kInternal, "the fetched message is unknown, or was fetched or refused before");
  const FaultPlan& plan = fabric_.plan_;
  Fetching fetching{std::move(held.mapped()), into, &completion, ++fabric_.num_fetches_};
  const bool fails_late = fetching.number == plan.failing_fetch && plan.fails_late;
  if (fails_late || mailbox_.chance(plan.pending)) {
    fetching_.push_back(std::move(fetching));
    return std::nullopt;
  }
  return finish(fetching);
}

Status LoopbackTransport::finish(const Fetching& fetching) {
  if (fetching.number != fabric_.plan_.failing_fetch) return copy(*fetching.waiting, fetching.into);
  end(*fetching.waiting, failure("fetch", fetching.number));
  return failure("fetch", fetching.number);
}

Status LoopbackTransport::copy(const WaitingSend& waiting, Buffer into) {
  const Mailbox& source = fabric_.mailboxes_[waiting.source];
  if (source.dead || source.closed)
    return {ErrorCode::kPeerLost, name_of(waiting.source) + " ended before its message was fetched"};
  if (into.num_bytes != waiting.payload.num_bytes) {
    end(waiting, {ErrorCode::kTransport, "the receiver fetched into memory of another length"});
    return {ErrorCode::kInternal, "the length of the memory to fetch into differs from the message's"};
  }
  std::memcpy(into.data, waiting.payload.data, into.num_bytes);
  end(waiting, Status());
  return Status();
}

void LoopbackTransport::end(const WaitingSend& waiting, Status status) {
  Mailbox& source = fabric_.mailboxes_[waiting.source];
  --source.num_unfetched;
  source.put({.content = EndedTransfer{waiting.completion, std::move(status)}}, fabric_.plan_);
}

void LoopbackTransport::refuse(void* rendezvous, const Status& why) noexcept {
  const std::lock_guard lock(fabric_.mutex_);
  if (!step()) return;
  auto held = mailbox_.held.extract(rendezvous);
  if (!held.empty()) end(*held.mapped(), nack::decode(nack::Encoded(why).bytes()));
}

unsigned LoopbackTransport::progress() noexcept {
  Ended ended;
  std::deque<Parcel> due;
  {
    const std::lock_guard lock(fabric_.mutex_);
    if (mailbox_.dead) return 0;
    post_outgoing(ended);
    do_fetches(ended);
    due = mailbox_.take_due(kMostParcelsARound);
    ++mailbox_.num_rounds;
  }
  for (EndedTransfer& transfer : ended) transfer.completion->done(*transfer.completion, std::move(transfer.status));
  for (Parcel& parcel : due) deliver(std::move(parcel));
  return static_cast<unsigned>(ended.size() + due.size());
}

void LoopbackTransport::post_outgoing(Ended& ended) {
  for (const Outgoing& message : std::exchange(outgoing_, {})) {
    if (message.number == fabric_.plan_.failing_send) {
      ended.push_back({message.completion, failure("send", message.number)});
      continue;
    }
    if (auto posted = post(message)) ended.push_back({message.completion, std::move(*posted)});
  }
}

void LoopbackTransport::do_fetches(Ended& ended) {
  for (const Fetching& fetching : std::exchange(fetching_, {})) {
    ended.push_back({fetching.completion, finish(fetching)});
  }
}

void LoopbackTransport::deliver(Parcel parcel) noexcept {
  if (auto* message = std::get_if<ArrivingMessage>(&parcel.content)) {
    deliver(*message);
  } else if (auto* lost = std::get_if<LostProcess>(&parcel.content)) {
    deliver(*lost);
  } else if (!fabric_.is_dead(process_)) {
    auto& transfer = std::get<EndedTransfer>(parcel.content);
    transfer.completion->done(*transfer.completion, std::move(transfer.status));
  }
}

void LoopbackTransport::deliver(ArrivingMessage& message) noexcept {
  Payload payload{.bytes = message.bytes.data(), .num_bytes = message.bytes.size()};
  {
    const std::lock_guard lock(fabric_.mutex_);
    if (!step()) {
      if (message.waiting) --fabric_.mailboxes_[message.waiting->source].num_unfetched;
      return;
    }
    if (message.waiting) {
      payload = {.num_bytes = message.waiting->payload.num_bytes, .rendezvous = mailbox_.next_handle(*message.waiting)};
      mailbox_.held.emplace(payload.rendezvous, std::move(message.waiting));
    }
  }
  receiver_->on_message(message.header, payload);
}

void LoopbackTransport::deliver(LostProcess lost) noexcept {
  for (PeerId peer = 0; peer < peers_.size(); ++peer) {
    if (peers_[peer].process != lost.process || std::exchange(peers_[peer].dropped, true)) continue;
    receiver_->on_peer_lost(peer, {ErrorCode::kPeerLost, name_of(lost.process) + " was killed"});
  }
}

bool LoopbackTransport::arm() noexcept {
  const std::lock_guard lock(fabric_.mutex_);
  if (mailbox_.dead) return true;
  mailbox_.silence();  // not in progress(), which another thread may call while a sleeper relies on the descriptor
  mailbox_.armed = !has_work();
  return mailbox_.armed;
}

void LoopbackTransport::flush(int timeout_ms) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  const auto is_done = [this] {
    const std::lock_guard lock(fabric_.mutex_);
    return mailbox_.dead || (outgoing_.empty() && mailbox_.num_unfetched == 0);
  };
  while (!is_done() && std::chrono::steady_clock::now() < deadline) {
    if (progress() == 0) std::this_thread::yield();
  }
}

}  // namespace axon::transport
