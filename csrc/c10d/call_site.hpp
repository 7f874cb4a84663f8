// Where in the user's program a thread is.
#pragma once

#include <string>

namespace axon {

// "train.py:12, in step": the innermost frame of this thread that is not torch's or ours; empty where there is none.
// For errors, and for calls where somebody has asked for it: takes Python's lock.
std::string call_site();

}  // namespace axon
