// Where asynchronous Works on CUDA tensors rest, whose callers may have dropped them, until the device is done with
// their tensors. Process-wide; any thread.
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
  // A stream of the caller's waits for the work: from here on its tensors are the caller's to keep or free.
  void release(AxonWork& work);
  // For threads that must not call CUDA, as the destructor of a Work would.
  void discard(c10::intrusive_ptr<AxonWork> work);
  // Lets go of all that has passed. Asks CUDA, which a capturing thread must not do.
  void clear();

 private:
  using Works = std::vector<c10::intrusive_ptr<AxonWork>>;

  std::mutex mutex_;
  std::unordered_map<AxonWork*, c10::intrusive_ptr<AxonWork>> kept_;
  Works discarded_;
};

}  // namespace axon::c10d_backend
