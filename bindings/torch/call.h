// Tensors of torch as the C interface describes them, and memory from torch's allocator.
#pragma once

#include "deltaworks/c_api.h"
#include "owned.h"

namespace deltaworks_torch {

// Describes a tensor as port `port` of a problem; its data pointer goes to *data. A rank above 4 is
// kept as a number only.
dw_tensor describe(int port, AtenTensorHandle tensor, void** data);

// A tensor's memory for writing: one that is copy-on-write gets its own.
void* writable(AtenTensorHandle tensor);

// Memory for a described output from torch's allocator.
Tensor allocate(const dw_tensor& output, void** data);
// Uninitialised bytes on the device of a described tensor.
Tensor allocate_bytes(std::size_t bytes, const dw_tensor& like, void** data);

// torch's current stream on the device of a described tensor; null on the CPU.
void* current_stream(const dw_tensor& like);

}  // namespace deltaworks_torch
