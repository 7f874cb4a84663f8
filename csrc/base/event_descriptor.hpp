// An event of eventfd(2): a descriptor that becomes readable once it is set, for threads that sleep in poll or epoll.
//
//   FileDescriptor event = open_event();
//   if (!event.valid()) return out_of("eventfd", errno);
//   set_event(event);     // any thread
//   clear_event(event);   // the thread that has woken
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/file_descriptor.hpp"

namespace axon {

// Returns an invalid descriptor, and keeps errno, if none is free.
inline FileDescriptor open_event() noexcept {
  return FileDescriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
}

inline void set_event(const FileDescriptor& event) noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof one);  // fails only if already set
}

inline void clear_event(const FileDescriptor& event) noexcept {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t num_read = ::read(event.get(), &count, sizeof count);
}

}  // namespace axon
