#include "rpc/core/opened_connections.hpp"

#include <algorithm>
#include <utility>

#include "base/interrupts.hpp"

namespace axon::rpc {

using Clock = sync::Clock;

Result<std::shared_ptr<Connection>> OpenedConnections::find_or_open(Destination destination, Clock::time_point deadline,
                                                                    const Open& open) {
  std::unique_lock lock(mutex_);
  while (Entry* const found = find_held(destination)) {
    if (found->is_open()) {
      ++found->num_calls;
      const std::shared_ptr<Connection> connection = found->connection.lock();
      lock.unlock();  // looking at it may run functions of the user
      if (connection != nullptr && connection->is_live()) return connection;
      lock.lock();
      std::erase_if(entries_,
                    [&](const Entry& entry) { return entry.is_open() && entry.connection.lock() == connection; });
      continue;
    }
    if (Clock::now() >= deadline) {
      return Status(ErrorCode::kTimeout, "another thread is connecting to this runtime, and was not done in time");
    }
    const std::shared_ptr<const Status> failure = found->failure;  // shared with the opener, which removes the entry
    opened_.wait_until(lock, interrupts::next_look(deadline));
    if (!failure->ok()) return failure->clone();
    lock.unlock();  // signal handlers may connect, too
    if (interrupts::are_pending()) return interrupts::interrupted();
    lock.lock();
  }
  const auto entry =
      entries_.insert(entries_.end(), {.destination = std::move(destination), .opener = std::this_thread::get_id()});
  lock.unlock();
  Result<std::shared_ptr<Connection>> opened = open();
  lock.lock();
  if (opened.ok()) {
    entry->connection = opened.value();
    entry->opener = {};
  } else {
    *entry->failure = opened.status().clone();
    entries_.erase(entry);
  }
  opened_.notify_all();
  return opened;
}

// Skips what this thread itself is opening: its signal handler connects meanwhile, and would wait without end.
OpenedConnections::Entry* OpenedConnections::find_held(const Destination& destination) {
  std::erase_if(entries_, [](const Entry& entry) { return entry.is_open() && entry.connection.expired(); });
  const auto found = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return entry.opener != std::this_thread::get_id() && entry.destination.incarnation == destination.incarnation &&
           std::ranges::equal(entry.destination.address_key.bytes(), destination.address_key.bytes());
  });
  return found == entries_.end() ? nullptr : &*found;
}

void OpenedConnections::undo(Connection& connection) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find_if(
        entries_, [&](const Entry& entry) { return entry.connection.lock().get() == &connection; });
    if (found == entries_.end() || --found->num_calls > 0) return;
    entries_.erase(found);
  }
  connection.close(Clock::now());
}

}  // namespace axon::rpc
