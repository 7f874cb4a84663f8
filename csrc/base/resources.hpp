// Resources that the system limits: file descriptors, threads and shared memory. These functions tell how much is left,
// and make errors that name the resource, its limit and what to do.
//
//   if (fd < 0) return out_of("pipe2", errno);     // "pipe2: Too many open files (64 of 64 file descriptors …)"
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <system_error>

#include "base/status.hpp"

namespace axon {

// Describes the failure of a system call that creates or opens something. The code is kResourceExhausted if file
// descriptors are used up, since the same call may succeed later, and kTransport otherwise.
Status out_of(const std::string& call, int error);

// Returns how many file descriptors this process may still open; empty if /proc cannot be read. It takes one system
// call since Linux 6.2.
std::optional<size_t> num_free_descriptors() noexcept;
// Fails with kResourceExhausted if fewer than `num_wanted` file descriptors are left. `purpose` completes the error's
// "… are needed to".
Status check_descriptors(size_t num_wanted, const std::string& purpose);
// Makes room in the kernel's table for this many more file descriptors, as far as the limit allows. In a process with
// threads, a call that opens one too many waits until the kernel has copied the table. That takes about 10 ms, and up
// to a minute if many more threads than cores run.
void reserve_descriptors(size_t num_wanted) noexcept;

// Returns the number of cores on which this process may run.
size_t num_cores() noexcept;

// Starts this many threads, which end at once. Fails with kResourceExhausted if the system does not start them all.
Status check_threads(size_t num_wanted);
// Says why the thread of this name could not be started, and names the limits that may be the reason.
std::string describe_thread_failure(const char* name, const std::system_error& failure);

// Describes /dev/shm for errors: "/dev/shm (64 MiB, 0 MiB of them free)", or why it cannot be used.
std::string describe_shared_memory();
// Returns how many bytes can still be written to /dev/shm: 0 if it is read-only or missing.
size_t room_in_shared_memory() noexcept;

}  // namespace axon
