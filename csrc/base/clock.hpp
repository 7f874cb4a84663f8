// The clock of all deadlines. It comes from base/sync.hpp, so that tests/model can replace it.
#pragma once

#include "base/sync.hpp"

namespace axon {

using Clock = sync::Clock;

}  // namespace axon
