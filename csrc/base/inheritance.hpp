// Keeps chosen file descriptors of this process from its forked children.
//
// A connection hangs up when the last copy of its socket is closed. A child's copy would thus hide the end of this
// process from its peers for as long as the child lives, and keep a listener's port bound.
//
//   const WithheldFromForks own(socket, WithheldFromForks::What::kItself);
//   const WithheldFromForks library(epoll_set, WithheldFromForks::What::kSocketsOfSet);
//   close_on_exec(epoll_set);
//
// fork() (and what calls it) leaves the child an unconnected descriptor in place of each withheld one: a blank rather
// than a gap, because the child's copies of the objects that own the number may still close it. exec() needs
// close-on-exec, which covers posix_spawn(), vfork() and system() too: they run no handlers of fork(). A child made by
// the bare system call clone() keeps its copies.
#pragma once

#include <cstdint>
#include <vector>

namespace axon {

// Has forks do so from now on; again does nothing. Called before the handlers of whoever makes descriptors while
// holding a lock that a fork takes: fork() takes locks in the opposite order of their handlers.
void withhold_at_forks();

class WithheldFromForks {
 public:
  enum class What : uint8_t {
    kItself,
    kSocketsOfSet,  // the sockets that an epoll set, or one within it, watches at the time of the fork
  };

  // Withholds nothing.
  WithheldFromForks() noexcept = default;
  WithheldFromForks(int descriptor, What what);
  WithheldFromForks(WithheldFromForks&& other) noexcept;
  WithheldFromForks& operator=(WithheldFromForks&& other) noexcept;
  // Before the descriptor is closed, unless by close_descriptor().
  ~WithheldFromForks();

  // Whether this withholds a descriptor.
  bool is_active() const noexcept { return descriptor_ >= 0; }
  // Closes the descriptor as well: no fork comes between the two and copies it after all.
  void close_descriptor() noexcept;

 private:
  void forget() noexcept;

  int descriptor_ = -1;
};

// Sets FD_CLOEXEC for an epoll set and all that it, or an epoll set within it, watches.
void close_on_exec(int epoll_set) noexcept;

// This process's epoll sets, by descriptor, ascending.
std::vector<int> epoll_sets();

// Whether the epoll set watches this descriptor.
bool watches(int epoll_set, int descriptor) noexcept;

}  // namespace axon
