// The C++ side of torch's interfaces to one-sided transfers: the Work of a transfer (torch_axon/windows.py,
// torch_axon/transport.py) and, since torch 2.14, c10d's window.
#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace axon::c10d_backend {

class AxonBackend;

// The Work of a transfer that Python code carries out. It ends by complete().
class TransferWork final : public c10d::Work {
 public:
  // `longest_wait`: for wait() without a timeout; zero: without end.
  explicit TransferWork(std::chrono::milliseconds longest_wait);
  bool wait(std::chrono::milliseconds timeout) override {
    return c10d::Work::wait(timeout == kNoTimeout ? longest_wait_ : timeout);
  }
  // At most once. An empty text means success, another one what DistBackendError says.
  void complete(const std::string& failure);
  // Completes as the Work does, with an empty list.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const std::chrono::milliseconds longest_wait_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

#ifdef C10D_BACKEND_HAS_WINDOW  // since 2.14
// Returns a torch_axon.windows.Window as c10d knows it. A collective. Without the GIL.
c10::intrusive_ptr<c10d::Window> make_window(AxonBackend& backend, const std::optional<at::Tensor>& tensor);
#endif

}  // namespace axon::c10d_backend
