// Keeps asynchronous Works on CUDA tensors alive until the device is done with their tensors, even if their callers
// drop them. One instance per process; any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <unordered_map>
#include <vector>

namespace axon::c10d_backend {

class AxonWork;

class InFlightWorks {
 public:
  static InFlightWorks& instance();

  void keep(c10::intrusive_ptr<AxonWork> work);
  // Releases a work that one of the caller's streams waits for: from now on the caller may free its tensors.
  void release(AxonWork& work);
  // Takes over a Work from threads that must not call CUDA, as its destructor would.
  void discard(c10::intrusive_ptr<AxonWork> work);
  // Releases all completed works. Queries CUDA, which a capturing thread must not do.
  void clear();

 private:
  using Works = std::vector<c10::intrusive_ptr<AxonWork>>;

  std::mutex mutex_;
  std::unordered_map<AxonWork*, c10::intrusive_ptr<AxonWork>> kept_;
  Works discarded_;
};

}  // namespace axon::c10d_backend
