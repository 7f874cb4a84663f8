// The programs of a model, and the tests that run them: without a fault, no schedule of any program may be bad. With a
// fault seeded into the code (AXON_SEEDED), some program must find it.
#pragma once

#include <span>

#include "scheduler.hpp"

namespace axon::model {

struct Program {
  const char* name;
  void (*run)();
  Limits limits;
};

// Each model defines it, for programs.cpp.
std::span<const Program> programs();

}  // namespace axon::model
