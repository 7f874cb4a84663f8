// Keeps chosen file descriptors of this process from its forked children.
//
// A connection hangs up when the last copy of its socket is closed. A child's copy would thus hide the end of this
// process from its peers for as long as the child lives, and keep a listener's port bound.
//
//   const WithheldFromForks own(socket, WithheldFromForks::What::kItself);
//   const WithheldFromForks library(epoll_set, WithheldFromForks::What::kSocketsOfSet);
//   close_on_exec(epoll_set);
//
// fork() (and functions that call it) leaves the child an unconnected descriptor in place of each withheld one. The
// number stays in use, because the child's copies of the objects that own it may still close it. exec() needs
// close-on-exec, which covers posix_spawn(), vfork() and system(), too: they run no handlers of fork(). A child made by
// the bare system call clone() keeps its copies.
#pragma once

#include <cstdint>
#include <vector>

namespace axon {

// Installs the handlers of fork(); repeated calls do nothing. Must be called before any module that makes descriptors
// under a lock installs a handler that takes that lock. The reason is that fork() runs such handlers in the opposite
// order of installation.
void withhold_at_forks();

class WithheldFromForks {
 public:
  enum class What : uint8_t {
    kItself,
    kSocketsOfSet,  // the sockets that an epoll set, or one within it, watches at the time of the fork
  };

  // An inactive object, which withholds nothing.
  WithheldFromForks() noexcept = default;
  WithheldFromForks(int descriptor, What what);
  WithheldFromForks(WithheldFromForks&& other) noexcept;
  WithheldFromForks& operator=(WithheldFromForks&& other) noexcept;
  // Must run before the descriptor is closed, unless close_descriptor() closes it.
  ~WithheldFromForks();

  // Returns whether this withholds a descriptor.
  bool is_active() const noexcept { return descriptor_ >= 0; }
  // Stops withholding and closes the descriptor in one step, so that no fork in between copies it.
  void close_descriptor() noexcept;

 private:
  void forget() noexcept;

  int descriptor_ = -1;
};

// Sets FD_CLOEXEC for an epoll set and for all descriptors that it, or an epoll set within it, watches.
void close_on_exec(int epoll_set) noexcept;

// Returns this process's epoll sets, by descriptor, ascending.
std::vector<int> epoll_sets();

// Returns whether the epoll set watches this descriptor.
bool watches(int epoll_set, int descriptor) noexcept;

}  // namespace axon
