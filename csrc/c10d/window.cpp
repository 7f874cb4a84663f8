#include "c10d/window.hpp"

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <utility>

#include "c10d/backend.hpp"
#include "c10d/errors.hpp"
#include "python/gil.hpp"

namespace axon::c10d_backend {

TransferWork::TransferWork(std::chrono::milliseconds longest_wait)
    : c10d::Work(-1, c10d::OpType::UNKNOWN),
      longest_wait_(longest_wait),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

void TransferWork::complete(const std::string& failure) {
  if (failure.empty()) {
    finish();
    return future_->markCompleted(c10::List<at::Tensor>());
  }
  const std::exception_ptr exception = to_exception({ErrorCode::kTransport, failure});
  finish(exception);
  future_->setError(exception);
}

#ifdef C10D_BACKEND_HAS_WINDOW

namespace py = pybind11;

namespace {

// c10d calls it without the GIL. The object of Python is released with it.
class PythonWindow final : public c10d::Window {
 public:
  explicit PythonWindow(py::object window) : window_(std::move(window)) {}
  PythonWindow(const PythonWindow&) = delete;
  PythonWindow& operator=(const PythonWindow&) = delete;
  ~PythonWindow() override {
    if (!python::python_goes_on()) {
      window_.release();
      return;
    }
    const python::GilHeld gil;
    window_ = py::object();
  }

  void tensor_register(const at::Tensor& tensor, bool /*owning*/) override { call("tensor_register", tensor); }
  void tensor_deregister() override { call("tensor_deregister"); }
  c10::intrusive_ptr<c10d::Work> put(const at::Tensor& tensor, int64_t rank, int64_t offset, bool is_async,
                                     const c10d::PutOptions& options) override {
    return start("put", options.timeout, tensor, rank, offset, is_async);
  }
  c10::intrusive_ptr<c10d::Work> signal(int64_t rank, bool is_async, const c10d::SignalOptions& options) override {
    return start("signal", options.timeout, rank, is_async);
  }
  c10::intrusive_ptr<c10d::Work> wait_signal(int64_t rank, bool is_async,
                                             const c10d::WaitSignalOptions& options) override {
    return start("wait_signal", options.timeout, rank, is_async);
  }
  at::Tensor map_remote_tensor(int64_t rank) override {
    const python::GilHeld gil;
    return window_.attr("map_remote_tensor")(rank).cast<at::Tensor>();
  }
  c10d::WindowAttr get_attr(int64_t /*rank*/) override { return {}; }  // puts change the one copy of the memory

 private:
  template <typename... Arguments>
  void call(const char* method, const Arguments&... arguments) {
    const python::GilHeld gil;
    window_.attr(method)(arguments...);
  }

  template <typename... Arguments>
  c10::intrusive_ptr<c10d::Work> start(const char* method, std::chrono::milliseconds timeout,
                                       const Arguments&... arguments) {
    const python::GilHeld gil;
    const bool is_set = timeout != c10d::kUnsetTimeout;
    const py::object limit = is_set ? py::cast(timeout) : py::object(py::none());
    return window_.attr(method)(arguments..., limit).template cast<c10::intrusive_ptr<c10d::Work>>();
  }

  py::object window_;
};

}  // namespace

c10::intrusive_ptr<c10d::Window> make_window(AxonBackend& backend, const std::optional<at::Tensor>& tensor) {
  const python::GilHeld gil;
  const py::object type = py::module_::import("torch_axon.windows").attr("Window");
  auto shared = c10::intrusive_ptr<AxonBackend>::reclaim_copy(&backend);
  return c10::make_intrusive<PythonWindow>(type(std::move(shared), tensor));
}

#endif

}  // namespace axon::c10d_backend
