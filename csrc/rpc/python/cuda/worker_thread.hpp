// A thread that does the tasks of a queue in their order, for driver calls and copies that the engine must not wait
// for.
//
//   WorkerThread& worker = …;             // never destroyed; the thread starts with the first task
//   worker.add([…] { … });                // any thread; never blocks
//
// At the exit of the process the thread stops after the task that it is doing.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "base/status.hpp"

namespace axon::rpc_python {

class WorkerThread {
 public:
  using Task = std::function<void()>;

  explicit WorkerThread(const char* name) noexcept : name_(name) {}
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  // Fails with kResourceExhausted if the system starts no thread, and with kAborted once it is stopped. The task is not
  // done then.
  Status add(Task task);
  // Waits for the task that is being done, but not forever.
  void stop() noexcept;

 private:
  void run();

  const char* const name_;
  std::mutex mutex_;  // guards the following members
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::thread thread_;
  int process_ = 0;  // the one in which the thread runs: a forked child has this object, and not the thread
  bool is_stopping_ = false;
  bool has_stopped_ = false;
};

}  // namespace axon::rpc_python
