// See call.h. Everything here is on the path of every operator call: fixed-size structs, no
// strings.
#include "call.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <stdexcept>

namespace deltaworks_torch {
namespace {

constexpr int kMaxRank = 4;

// torch's number of each element type, by ours.
const std::array<std::int32_t, DW_OTHER>& torch_dtypes() {
  static const std::array<std::int32_t, DW_OTHER> numbers = {
      aoti_torch_dtype_float32(), aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16(),
      aoti_torch_dtype_float64(), aoti_torch_dtype_int32(),    aoti_torch_dtype_int64(),
      aoti_torch_dtype_bool(),    aoti_torch_dtype_uint8(),    aoti_torch_dtype_int8(),
      aoti_torch_dtype_int16(),   aoti_torch_dtype_complex64()};
  return numbers;
}

std::int32_t dtype_of(AtenTensorHandle tensor) {
  std::int32_t number;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor, &number));
  const auto& numbers = torch_dtypes();  // DW_OTHER follows the last of them
  return static_cast<std::int32_t>(std::find(numbers.begin(), numbers.end(), number) -
                                   numbers.begin());
}

std::int32_t device_of(AtenTensorHandle tensor) {
  static const std::int32_t cpu = aoti_torch_device_type_cpu();
  static const std::int32_t cuda = aoti_torch_device_type_cuda();
  std::int32_t type;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor, &type));
  return type == cpu ? DW_CPU : type == cuda ? DW_CUDA : DW_OTHER_DEVICE;
}

std::int32_t torch_device(const dw_tensor& tensor) {
  return tensor.device_type == DW_CPU ? aoti_torch_device_type_cpu()
                                      : aoti_torch_device_type_cuda();
}

// A tensor of torch's allocator on the device of `like`. torch prints why there is no memory.
Tensor allocate_as(std::int64_t ndim, const std::int64_t* shape, const std::int64_t* stride,
                   std::int32_t dtype, const dw_tensor& like, void** data) {
  AtenTensorHandle handle;
  if (aoti_torch_empty_strided(ndim, shape, stride, dtype, torch_device(like), like.device_index,
                               &handle) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error("deltaworks[memory]: out of memory for what a call writes");
  }
  Tensor tensor(handle);
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, data));
  return tensor;
}

}  // namespace

dw_tensor describe(int port, AtenTensorHandle tensor, void** data) {
  dw_tensor result{};
  std::int64_t ndim, *shape, *stride;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &ndim));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &shape));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &stride));
  result.port = port;
  result.ndim = static_cast<std::int32_t>(ndim);
  std::copy_n(shape, std::min<std::int64_t>(ndim, kMaxRank), result.shape);
  std::copy_n(stride, std::min<std::int64_t>(ndim, kMaxRank), result.stride);
  result.dtype = dtype_of(tensor);
  result.device_type = device_of(tensor);
  if (result.device_type != DW_CPU) {  // the CPU has no index; torch says -1 or 0
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor, &result.device_index));
  }
  // Inputs are only read: a copy-on-write tensor stays shared.
  const void* base;
  TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(tensor, &base));
  *data = const_cast<void*>(base);
  return result;
}

void* writable(AtenTensorHandle tensor) {
  void* base;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(tensor, &base));
  return base;
}

Tensor allocate(const dw_tensor& output, void** data) {
  return allocate_as(output.ndim, output.shape, output.stride, torch_dtypes()[output.dtype], output,
                     data);
}

Tensor allocate_bytes(std::size_t bytes, const dw_tensor& like, void** data) {
  const std::int64_t shape = static_cast<std::int64_t>(bytes), stride = 1;
  return allocate_as(1, &shape, &stride, aoti_torch_dtype_uint8(), like, data);
}

void* current_stream(const dw_tensor& like) {
  if (like.device_type != DW_CUDA) return nullptr;
  // A build of torch without CUDA lacks the function, so it is looked up where torch's CUDA part
  // is.
  using Getter = AOTITorchError (*)(std::int32_t, void**);
  static const auto get = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    void* symbol = library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : nullptr;
    return reinterpret_cast<Getter>(symbol);
  }();
  if (get == nullptr) throw std::runtime_error("deltaworks: this torch has no CUDA streams");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(get(like.device_index, &stream));
  return stream;
}

}  // namespace deltaworks_torch
