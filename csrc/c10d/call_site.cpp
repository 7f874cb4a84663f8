#include "c10d/call_site.hpp"

#include <torch/csrc/utils/pybind.h>

#include <mutex>
#include <unordered_set>

#include "base/forks.hpp"
#include "python/gil.hpp"
#include "python/signals.hpp"

namespace axon::c10d_backend {

namespace py = pybind11;

// Returns the package's folder: "/…/site-packages/torch/".
static std::string folder_of(const char* package) {
  return py::module_::import(package).attr("__path__").attr("__getitem__")(0).cast<std::string>() + "/";
}

static std::string innermost_foreign_frame() {
  const std::string torch = folder_of("torch");
  const std::string ours = folder_of("torch_axon");
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    auto* const raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const auto file = code.attr("co_filename").cast<std::string>();
    if (!file.starts_with(torch) && !file.starts_with(ours)) {
      return file + ":" + std::to_string(PyFrame_GetLineNumber(raw)) + ", in " +
             code.attr("co_name").cast<std::string>();
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return "";
}

std::string call_site() {
  if (!python::has_python()) return "";
  const python::GilHeld gil;
  try {
    return innermost_foreign_frame();
  } catch (const py::error_already_set&) {
    return "";  // the caller is already reporting an error
  }
}

namespace {

struct CallSites {
  std::mutex mutex;
  std::unordered_set<std::string> known;
};

constexpr size_t kMostCallSites = 4096;

}  // namespace

std::string_view interned_call_site() {
  static OnePerProcess<CallSites> all;
  std::string found_site = call_site();
  CallSites& call_sites = all.get();
  const std::lock_guard lock(call_sites.mutex);
  if (const auto found = call_sites.known.find(found_site); found != call_sites.known.end()) return *found;
  if (call_sites.known.size() == kMostCallSites) return "";
  return *call_sites.known.insert(std::move(found_site)).first;
}

}  // namespace axon::c10d_backend
