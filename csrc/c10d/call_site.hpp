// Finds the line of the user's program that a thread is executing.
#pragma once

#include <string>
#include <string_view>

namespace axon::c10d_backend {

// Returns the innermost frame of this thread outside of torch and torch_axon, such as "train.py:12, in step". Empty
// without such a frame. Takes the GIL, so it is only for errors, and for calls when the user has enabled it.
std::string call_site();

// The same, with storage that is never freed, for records that are copied. Empty once the program has used too many
// sites.
std::string_view interned_call_site();

}  // namespace axon::c10d_backend
