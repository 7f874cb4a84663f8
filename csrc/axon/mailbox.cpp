#include "axon/mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "axon/deadline.hpp"
#include "axon/mailbox_state.hpp"
#include "rpc/core/inbound.hpp"

namespace axon::library {

// The header that precedes a message's value, see MailSender.
struct MailHeader {
  int64_t number = -1;  // not a valid header
  int64_t settled = 0;
  int64_t num_waiting = 0;
};

static MailHeader enter(rpc::ValueReader& values) noexcept {
  if (values.next().kind != rpc::Value::Kind::kArray || values.next().count != 4) return {};
  const rpc::Value number = values.next(), num_unsettled = values.next(), num_waiting = values.next();
  for (const rpc::Value& value : {number, num_unsettled, num_waiting}) {
    if (value.kind != rpc::Value::Kind::kInteger || value.integer < 0 || value.integer == INT64_MAX) return {};
  }
  return {number.integer, number.integer - num_unsettled.integer, num_waiting.integer};
}

Mail::Mail(Invocation& invocation) : sender_(invocation.caller()) {
  rpc::Inbound& inbound = invocation.arguments().inbound_;
  values_.assign(inbound.values().begin(), inbound.values().end());
  for (rpc::Inbound::Tensor& tensor : inbound.tensors()) {
    Kept kept{static_cast<DataType>(tensor.dtype), {tensor.shape.begin(), tensor.shape.end()}, {}, {}, {}};
    kept.data = {tensor.data.data, tensor.data.num_bytes};
    kept.owner = std::move(tensor.owner);
    kept.host_buffer = std::move(tensor.host_buffer);
    const bool is_copied = tensor.location == rpc::TensorLocation::kHeaderFrame && kept.owner.get() == nullptr;
    if (is_copied && !kept.data.empty()) {
      kept.host_buffer = HostBuffer::take(kept.data.size());
      if (!kept.host_buffer) throw std::bad_alloc();
      std::memcpy(kept.host_buffer.data(), kept.data.data(), kept.data.size());
      kept.data = {kept.host_buffer.data(), kept.data.size()};
    }
    tensors_.push_back(std::move(kept));
  }
}

rpc::ValueReader Mail::values() const noexcept {
  rpc::ValueReader values(values_);
  enter(values);
  return values;
}

Tensor Mail::tensor(size_t index) const noexcept {
  if (index >= tensors_.size()) return {};
  const Kept& kept = tensors_[index];
  return {.type = kept.type, .shape = kept.shape, .data = kept.data};
}

HostBuffer Mail::take(size_t index) noexcept {
  return index < tensors_.size() ? std::move(tensors_[index].host_buffer) : HostBuffer();
}

Owner Mail::take_owner(size_t index) noexcept {
  return index < tensors_.size() ? std::move(tensors_[index].owner) : Owner();
}

size_t Mailbox::probe() const noexcept {
  return state_ ? state_->probe() : 0;
}

Result<Mail> Mailbox::take(std::chrono::milliseconds timeout) {
  if (state_) return state_->take(timeout);
  return Status(ErrorCode::kInvalidArgument, "the mailbox was moved from");
}

size_t Mailbox::State::probe() const noexcept {
  const std::lock_guard lock(mutex_);
  return here_.size() + waiting_for_room_.size();
}

Result<Mail> Mailbox::State::take(std::chrono::milliseconds timeout) {
  Waiter waiter;
  Answers accepted;
  std::unique_lock lock(mutex_);
  if (!here_.empty()) {
    Mail mail = std::move(here_.front());
    here_.pop_front();
    if (!waiting_for_room_.empty()) {
      Message next = std::move(waiting_for_room_.front());
      waiting_for_room_.pop_front();
      put(std::move(next), accepted);
    }
    lock.unlock();
    answer(accepted);
    return mail;
  }
  if (!closed_.ok()) return closed_.clone();
  waiting_.push_back(&waiter);
  lock.unlock();
  engine_.wait(waiter.is_over, deadline_in(timeout));
  lock.lock();
  if (waiter.mail) return std::move(*waiter.mail);
  std::erase(waiting_, &waiter);
  if (waiter.is_over.load()) return closed_.clone();
  return Status(ErrorCode::kTimeout, "no message arrived within " + std::to_string(timeout.count()) + " ms");
}

void Mailbox::State::arrive(Invocation& invocation) {
  rpc::ValueReader values = invocation.arguments().values();
  const MailHeader header = enter(values);
  if (header.number < 0) {
    return invocation.fail("TypeError",
                           "'" + std::string(invocation.function()) + "' belongs to a mailbox; send messages to it");
  }
  const std::shared_ptr<rpc::Connection> sender = invocation.caller().connection();
  Mail mail(invocation);
  Answers accepted;
  bool is_new = false;
  bool is_closed = false;
  {
    const std::lock_guard lock(mutex_);
    is_closed = !closed_.ok();
    if (!is_closed) {
      const auto [found, is_first] = orders_.try_emplace(sender);
      Order& order = found->second;
      const bool is_due = header.number >= order.next && !order.early.contains(header.number);
      if (is_due) {
        order.early.try_emplace(header.number, Message{std::move(mail), std::move(invocation), header.num_waiting});
      }
      settle(order, header.settled, accepted);
      is_new = is_first;
    }
  }
  answer(accepted);
  if (is_closed) return invocation.fail("ConnectionError", "the mailbox is closed");
  if (!invocation.is_answered()) {
    invocation.fail("TimeoutError", "the message arrived after its sender gave up");
  }
  if (is_new && sender->has_ended()) drop(sender);  // it may have been lost before
}

void Mailbox::State::settle(const std::shared_ptr<rpc::Connection>& sender, int64_t settled) {
  Answers accepted;
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) return;
    const auto [found, is_first] = orders_.try_emplace(sender);
    settle(found->second, settled, accepted);
    is_new = is_first;
  }
  answer(accepted);
  if (is_new && sender->has_ended()) drop(sender);  // it may have been lost before
}

void Mailbox::State::settle(Order& order, int64_t settled, Answers& accepted) {
  while (true) {
    if (const auto due = order.early.find(order.next); due != order.early.end()) {
      Message message = std::move(due->second);
      order.early.erase(due);
      ++order.next;
      use_grants(order, 1);
      put(std::move(message), accepted);
    } else if (order.next < settled) {
      const int64_t next = order.early.empty() ? settled : std::min(settled, order.early.begin()->first);
      use_grants(order, static_cast<size_t>(next - order.next));
      order.next = next;
    } else {
      return;
    }
  }
}

void Mailbox::State::put(Message message, Answers& accepted) {
  if (!waiting_.empty()) {
    Waiter& waiter = *waiting_.front();
    waiting_.pop_front();
    waiter.mail = std::move(message.mail);
    waiter.is_over.store(true);
  } else if (here_.size() < capacity_) {
    here_.push_back(std::move(message.mail));
  } else {
    waiting_for_room_.push_back(std::move(message));
    return;
  }
  const int64_t num_granted = grant_for(message.invocation, message.num_waiting);
  accepted.push_back({std::move(message.invocation), num_granted});
}

void Mailbox::State::use_grants(Order& order, size_t at_most) noexcept {
  const size_t num_used = std::min(order.num_granted, at_most);
  order.num_granted -= num_used;
  num_granted_ -= num_used;
}

// Returns the sender's share of the room that is neither taken nor granted, at most what it needs.
int64_t Mailbox::State::grant_for(Invocation& invocation, int64_t num_waiting) noexcept {
  const auto found = orders_.find(invocation.caller().connection());
  const size_t num_taken = here_.size() + num_granted_;
  if (found == orders_.end() || !waiting_for_room_.empty() || num_taken >= capacity_) return 0;
  Order& order = found->second;
  const size_t share = std::max<size_t>((capacity_ - num_taken) / orders_.size(), 1);
  const size_t needed =
      static_cast<size_t>(num_waiting) - std::min(static_cast<size_t>(num_waiting), order.num_granted);
  const size_t num_granted = std::min(needed, share);
  order.num_granted += num_granted;
  num_granted_ += num_granted;
  return static_cast<int64_t>(num_granted);
}

void Mailbox::State::answer(Answers& accepted) {
  for (Accepted& each : accepted) {
    each.invocation.answer().integer(each.num_granted);
    each.invocation.reply();
  }
}

void Mailbox::State::drop(const std::shared_ptr<rpc::Connection>& sender) {
  Order gone;
  const std::lock_guard lock(mutex_);
  if (const auto found = orders_.find(sender); found != orders_.end()) {
    use_grants(found->second, found->second.num_granted);
    gone = std::move(found->second);
    orders_.erase(found);
  }
}

void Mailbox::State::close(Status reason) {
  std::unordered_map<std::shared_ptr<rpc::Connection>, Order> gone;
  Answers accepted;
  {
    const std::lock_guard lock(mutex_);
    closed_ = std::move(reason);
    gone = std::exchange(orders_, {});
    for (Waiter* waiter : waiting_) waiter->is_over.store(true);
    waiting_.clear();
    for (Message& message : waiting_for_room_) {  // their invocations would keep the runtime alive
      here_.push_back(std::move(message.mail));
      accepted.push_back({std::move(message.invocation), 0});
    }
    waiting_for_room_.clear();
    num_granted_ = 0;
  }
  answer(accepted);
  engine_.nudge();
}

}  // namespace axon::library
