// What the system gives a process only so much of: whether some is left, and errors that name the resource, its limit
// and what to do.
//
//   if (fd < 0) return out_of("pipe2", errno);     // "pipe2: Too many open files (64 of 64 file descriptors …)"
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <system_error>

#include "base/status.hpp"

namespace axon {

// The failure of a system call that makes or opens something. kResourceExhausted: file descriptors are used up, so that
// the same call may succeed later; kTransport: everything else.
Status out_of(const std::string& call, int error);

// File descriptors that this process may still open. None: /proc does not tell. One system call since Linux 6.2.
std::optional<size_t> num_free_descriptors() noexcept;
// Fails, with kResourceExhausted, if fewer than `num_wanted` are left; `purpose` completes "… are needed to".
Status check_descriptors(size_t num_wanted, const std::string& purpose);

// Fails, with kResourceExhausted, if so many threads cannot be started now, which it tries.
Status check_threads(size_t num_wanted);
// Why the thread of this name could not be started, with the limits that may be the reason.
std::string describe_thread_failure(const char* name, const std::system_error& failure);

// "/dev/shm (64 MiB, 0 MiB of them free)", or what else is wrong with it.
std::string describe_shared_memory();
// Bytes that may still be written there: none where it is read-only, or not there.
size_t room_in_shared_memory() noexcept;

}  // namespace axon
