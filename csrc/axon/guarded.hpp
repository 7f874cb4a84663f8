// Runs a user's function that must answer. An exception becomes a failure, unless the function has answered.
#pragma once

#include <exception>

namespace axon::library {

template <typename Answer, typename Function>
void run_guarded(Answer& answer, const Function& function) noexcept {
  try {
    function(answer);
  } catch (const std::exception& error) {
    if (!answer.is_answered()) answer.fail("RuntimeError", error.what());
  } catch (...) {
    if (!answer.is_answered()) answer.fail("RuntimeError", "an exception that does not derive from std::exception");
  }
}

}  // namespace axon::library
