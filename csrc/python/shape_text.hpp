// Text about tensors for error messages. It is made without C++ streams: in an extension that g++ 13 had built, writing
// to a std::ostringstream beside torch's own libraries ended the process.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace axon::python {

// Returns sizes or strides as torch prints them: "[3, 5]".
std::string text_of(at::IntArrayRef numbers);

// Returns the name of a layout as torch prints it, without "torch.": "SparseCsr".
std::string text_of(at::Layout layout);

}  // namespace axon::python
