// Where in the user's program a thread is.
#pragma once

#include <string>
#include <string_view>

namespace axon::c10d_backend {

// "train.py:12, in step": the innermost frame of this thread that is not torch's or ours; empty where there is none.
// For errors, and for calls where somebody has asked for it: takes Python's lock.
std::string call_site();

// The same, kept for good: for records that are copied. Empty for the sites of a program that has no end of them.
std::string_view interned_call_site();

}  // namespace axon::c10d_backend
