#include "rpc/core/mailboxes/mailbox.hpp"

#include <algorithm>
#include <utility>

#include "rpc/core/reply.hpp"

namespace axon::rpc {

void Mailbox::Effects::carry_out() noexcept {
  for (const Accepted& each : accepted) {
    reply_with(*each.call, [&](ValueWriter writer) { writer.integer(each.num_granted); });
  }
  for (const Receiver& receiver : over) receiver->on_over();
}

size_t Mailbox::probe() const noexcept {
  const std::lock_guard lock(mutex_);
  return here_.size() + waiting_for_room_.size();
}

std::unique_ptr<Mail> Mailbox::take_arrived() {
  Effects effects;
  std::unique_lock lock(mutex_);
  std::unique_ptr<Mail> mail = next(effects);
  lock.unlock();
  effects.carry_out();
  return mail;
}

void Mailbox::receive(const Receiver& receiver) {
  Effects effects;
  std::unique_lock lock(mutex_);
  if (std::unique_ptr<Mail> mail = next(effects); mail != nullptr || !closed_.ok()) {
    end(*receiver, std::move(mail));
  } else {
    receivers_.push_back(receiver);
  }
  lock.unlock();
  effects.carry_out();
}

bool Mailbox::withdraw(const Receiver& receiver) {
  const std::lock_guard lock(mutex_);
  return std::erase(receivers_, receiver) != 0;
}

void Mailbox::give_up(const Receiver& receiver) {
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    if (std::erase(receivers_, receiver) != 0 || receiver->mail_ == nullptr) return;
    std::unique_ptr<Mail> mail = receiver->take();
    if (!give_to_receiver(mail, effects)) here_.push_front(std::move(mail));
  }
  effects.carry_out();
}

bool Mailbox::arrive(std::unique_ptr<Mail> mail) {
  Effects effects;
  bool is_first = false;
  bool is_closed = false;
  {
    const std::lock_guard lock(mutex_);
    is_closed = !closed_.ok();
    if (!is_closed) {
      const auto [found, is_new] = orders_.try_emplace(mail->sender());
      Order& order = found->second;
      const MailHeader header = mail->header();
      if (header.number == order.next) {
        put_next(order, std::move(mail), effects);
      } else if (header.number > order.next && !order.early.contains(header.number)) {
        order.early.emplace(header.number, std::move(mail));
      }
      settle(order, header.settled, effects);
      is_first = is_new;
    }
  }
  effects.carry_out();
  if (is_closed) {
    mail->fail("ConnectionError", "the mailbox is closed");
  } else if (mail != nullptr) {
    mail->fail("TimeoutError", "the message arrived after its sender gave up");
  }
  return is_first;
}

bool Mailbox::settle(Connection& sender, int64_t settled) {
  Effects effects;
  bool is_first = false;
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) return false;
    const auto [found, is_new] = orders_.try_emplace(sender.shared_from_this());
    settle(found->second, settled, effects);
    is_first = is_new;
  }
  effects.carry_out();
  return is_first;
}

void Mailbox::settle(Order& order, int64_t settled, Effects& effects) {
  while (true) {
    if (const auto due = order.early.find(order.next); due != order.early.end()) {
      std::unique_ptr<Mail> mail = std::move(due->second);
      order.early.erase(due);
      put_next(order, std::move(mail), effects);
    } else if (order.next < settled) {
      const int64_t next = order.early.empty() ? settled : std::min(settled, order.early.begin()->first);
      use_grants(order, static_cast<size_t>(next - order.next));
      order.next = next;
    } else {
      return;
    }
  }
}

void Mailbox::put_next(Order& order, std::unique_ptr<Mail> mail, Effects& effects) {
  ++order.next;
  use_grants(order, 1);
  put(std::move(mail), effects);
}

void Mailbox::put(std::unique_ptr<Mail> mail, Effects& effects) {
  if (!receivers_.empty()) {
    accept(*mail, effects);  // before the receiver's thread can take it, which needs no lock
    give_to_receiver(mail, effects);
  } else if (here_.size() < capacity_) {
    here_.push_back(std::move(mail));
    accept(*here_.back(), effects);
  } else {
    waiting_for_room_.push_back(std::move(mail));
  }
}

bool Mailbox::give_to_receiver(std::unique_ptr<Mail>& mail, Effects& effects) {
  if (receivers_.empty()) return false;
  Receiver receiver = std::move(receivers_.front());
  receivers_.pop_front();
  end(*receiver, std::move(mail));
  effects.over.push_back(std::move(receiver));
  return true;
}

std::unique_ptr<Mail> Mailbox::next(Effects& effects) {
  if (here_.empty()) return nullptr;
  std::unique_ptr<Mail> mail = std::move(here_.front());
  here_.pop_front();
  if (!waiting_for_room_.empty()) {
    std::unique_ptr<Mail> waiting = std::move(waiting_for_room_.front());
    waiting_for_room_.pop_front();
    put(std::move(waiting), effects);
  }
  return mail;
}

void Mailbox::accept(Mail& mail, Effects& effects) {
  const int64_t num_granted = grant_for(mail);
  effects.accepted.push_back({mail.take_call(), num_granted});
}

void Mailbox::use_grants(Order& order, size_t at_most) noexcept {
  const size_t num_used = std::min(order.num_granted, at_most);
  order.num_granted -= num_used;
  num_granted_ -= num_used;
}

int64_t Mailbox::grant_for(const Mail& mail) noexcept {
  const auto found = orders_.find(mail.sender());
  const size_t num_taken = here_.size() + num_granted_;
  if (found == orders_.end() || !waiting_for_room_.empty() || num_taken >= capacity_) return 0;
  Order& order = found->second;
  const size_t share = std::max<size_t>((capacity_ - num_taken) / orders_.size(), 1);
  const auto num_waiting = static_cast<size_t>(mail.header().num_waiting);
  const size_t num_granted = std::min(num_waiting - std::min(num_waiting, order.num_granted), share);
  order.num_granted += num_granted;
  num_granted_ += num_granted;
  return static_cast<int64_t>(num_granted);
}

void Mailbox::drop(Connection& sender) {
  Order gone;
  const std::lock_guard lock(mutex_);
  if (const auto found = orders_.find(sender.shared_from_this()); found != orders_.end()) {
    use_grants(found->second, found->second.num_granted);
    gone = std::move(found->second);
    orders_.erase(found);
  }
}

void Mailbox::close(Status reason) {
  Orders gone;
  Effects effects;
  {
    const std::lock_guard lock(mutex_);
    closed_ = std::move(reason);
    gone = std::exchange(orders_, {});
    num_granted_ = 0;
    for (const Receiver& receiver : receivers_) end(*receiver);
    effects.over.assign(receivers_.begin(), receivers_.end());
    receivers_.clear();
    for (std::unique_ptr<Mail>& mail : std::exchange(waiting_for_room_, {})) {  // their calls keep the runtime alive
      accept(*mail, effects);
      here_.push_back(std::move(mail));
    }
  }
  effects.carry_out();
}

Status Mailbox::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_.clone();
}

void Mailbox::end(MailReceiver& receiver, std::unique_ptr<Mail> mail) noexcept {
  receiver.mail_ = std::move(mail);
  receiver.is_over_.store(true);
}

}  // namespace axon::rpc
