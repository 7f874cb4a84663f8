// Task<T>: a lazy coroutine whose frame comes from a SizeClassPool.
//
//   Task<Status> exchange_all(Exchange& exchange) {
//     AXON_CO_TRY(co_await batch);
//     co_return Status();
//   }
//
// The first parameter of every coroutine supplies the pool (`first.size_class_pool()`), so no frame comes from the heap
// on the message path. A Task owns its frame; destroying it destroys the frame. Tasks run only on the progress owner.
// No exceptions cross an await: the data path is noexcept, and an escaping exception terminates the process.
#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>

#include "base/size_class_pool.hpp"

// GCC mistakes the promise's operator new for a placement form that its operator delete does not match. It warns where
// a coroutine is defined, hence no pop.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

namespace axon {

template <typename T>
class [[nodiscard]] Task {
 public:
  struct promise_type;
  using Handle = std::coroutine_handle<promise_type>;

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Starts or resumes the coroutine from outside any coroutine.
  void resume() { handle_.resume(); }
  bool done() const noexcept { return handle_.done(); }
  T take() noexcept { return std::move(*handle_.promise().value); }

  // Awaits the end of a task that resume() has started: tasks that run side by side are started first, awaited then.
  struct End {
    Handle handle;
    bool await_ready() const noexcept { return handle.done(); }
    void await_suspend(std::coroutine_handle<> continuation) const noexcept {
      handle.promise().continuation = continuation;
    }
    T await_resume() const noexcept { return std::move(*handle.promise().value); }
  };
  End end() const noexcept { return {handle_}; }

  // Awaiting a task from another coroutine runs it to its end first.
  bool await_ready() const noexcept { return false; }
  std::coroutine_handle<> await_suspend(std::coroutine_handle<> continuation) noexcept {
    handle_.promise().continuation = continuation;
    return handle_;
  }
  T await_resume() noexcept { return take(); }

 private:
  explicit Task(Handle handle) noexcept : handle_(handle) {}
  Handle handle_;
};

template <typename T>
struct Task<T>::promise_type {
  std::optional<T> value;
  std::coroutine_handle<> continuation = std::noop_coroutine();

  Task get_return_object() noexcept { return Task(Handle::from_promise(*this)); }
  std::suspend_always initial_suspend() const noexcept { return {}; }
  void return_value(T result) noexcept { value.emplace(std::move(result)); }
  void unhandled_exception() noexcept { std::terminate(); }

  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    std::coroutine_handle<> await_suspend(Handle finished) noexcept { return finished.promise().continuation; }
    void await_resume() const noexcept {}
  };
  FinalAwaiter final_suspend() const noexcept { return {}; }

  // The pool's address precedes the frame, so that operator delete finds it.
  struct alignas(std::max_align_t) FrameHeader {
    SizeClassPool* pool;
  };

  template <typename First, typename... Rest>
  static void* operator new(size_t num_bytes, First& first, Rest&...) {
    SizeClassPool& pool = first.size_class_pool();
    void* allocation = pool.allocate(num_bytes + sizeof(FrameHeader));
    static_cast<FrameHeader*>(allocation)->pool = &pool;
    return static_cast<FrameHeader*>(allocation) + 1;
  }
  static void operator delete(void* frame, size_t num_bytes) noexcept {
    FrameHeader* header = static_cast<FrameHeader*>(frame) - 1;
    header->pool->release(header, num_bytes + sizeof(FrameHeader));
  }
};

}  // namespace axon
