#include "python/signals.hpp"

#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "python/gil.hpp"

namespace axon {

// How long exit handlers that run after ours may take, or may wait for a thread whose wait has ended.
static constexpr std::chrono::seconds kLongestHandlers{2};
static constexpr std::chrono::milliseconds kLookInterval{1};

static std::atomic<unsigned long> ending_thread{0};  // the one that runs exit handlers; 0: Python does not end yet

static bool ends_python_elsewhere() noexcept {
  const unsigned long ending = ending_thread.load(std::memory_order_relaxed);
  return ending != 0 && ending != PyThread_get_thread_ident();
}

void note_end_of_python() noexcept {
  ending_thread.store(PyThread_get_thread_ident(), std::memory_order_relaxed);
}

bool has_python() noexcept {
  return python_goes_on() && !ends_python_elsewhere();
}

void stay_behind_if_python_ends() noexcept {
  if (!ends_python_elsewhere()) [[likely]]
    return;
  const auto deadline = std::chrono::steady_clock::now() + kLongestHandlers;
  while (python_goes_on()) {
    if (std::chrono::steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(kLookInterval);
  }
  while (true) pause();
}

void check_signals() {
  if (!has_python()) return;
  const GilHeld gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace axon
