// See call.h. Everything here is on the path of every operator call: fixed-size structs, no
// strings.
#include "call.h"

#include <algorithm>
#include <array>

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

std::int64_t extent(const dw_tensor& tensor, int axis) {
  return axis < std::min(tensor.ndim, kMaxRank) ? tensor.shape[axis] : 0;
}

// A contiguous tensor on the device of `like`.
dw_tensor contiguous(const dw_tensor& like, std::int32_t dtype, std::int32_t ndim,
                     std::array<std::int64_t, kMaxRank> shape) {
  dw_tensor output{};
  output.present = 1;
  output.dtype = dtype;
  output.device_type = like.device_type;
  output.device_index = like.device_index;
  output.ndim = ndim;
  std::int64_t stride = 1;
  for (int axis = std::min(ndim, kMaxRank) - 1; axis >= 0; --axis) {
    output.shape[axis] = shape[axis];
    output.stride[axis] = stride;
    stride *= std::max<std::int64_t>(shape[axis], 1);
  }
  return output;
}

// The tensor that a gradient port belongs to.
int primal(int gradient) {
  return gradient == DW_D_INITIAL_STATE ? DW_INITIAL_STATE : DW_Q + (gradient - DW_DQ);
}

}  // namespace

dw_tensor describe(AtenTensorHandle tensor) {
  dw_tensor result{};
  std::int64_t ndim, *shape, *stride;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(tensor, &ndim));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(tensor, &shape));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(tensor, &stride));
  result.present = 1;
  result.ndim = static_cast<std::int32_t>(ndim);
  std::copy_n(shape, std::min<std::int64_t>(ndim, kMaxRank), result.shape);
  std::copy_n(stride, std::min<std::int64_t>(ndim, kMaxRank), result.stride);
  result.dtype = dtype_of(tensor);
  result.device_type = device_of(tensor);
  if (result.device_type != DW_CPU) {  // the CPU has no index; torch says -1 or 0
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor, &result.device_index));
  }
  // Inputs are only read: a copy-on-write tensor stays shared.
  const void* data;
  TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(tensor, &data));
  result.data = const_cast<void*>(data);
  return result;
}

void describe_forward_outputs(dw_call& call) {
  const dw_tensor& q = call.tensors[DW_Q];
  const dw_tensor& v = call.tensors[DW_V];
  const dw_tensor& initial_state = call.tensors[DW_INITIAL_STATE];
  const std::int64_t heads = std::max(extent(q, 1), extent(v, 1));
  const std::int64_t key_dim = extent(q, 2), value_dim = extent(v, 2);
  call.tensors[DW_O] = contiguous(q, q.dtype, 3, {extent(q, 0), heads, value_dim, 0});
  if (call.flags & DW_OUTPUT_FINAL_STATE) {
    const std::int64_t sequences =
        std::max<std::int64_t>(extent(call.tensors[DW_CU_SEQLENS], 0) - 1, 0);
    const std::int32_t dtype = initial_state.present   ? initial_state.dtype
                               : q.dtype == DW_FLOAT64 ? DW_FLOAT64
                                                       : DW_FLOAT32;
    call.tensors[DW_FINAL_STATE] = contiguous(q, dtype, 4, {sequences, heads, value_dim, key_dim});
  }
}

void describe_gradients(dw_call& call, std::int64_t wanted) {
  for (int port = DW_DQ; port <= DW_D_INITIAL_STATE; ++port) {
    if (!(wanted >> port & 1)) continue;
    const dw_tensor& input = call.tensors[primal(port)];
    call.tensors[port] =
        contiguous(input, input.dtype, input.ndim,
                   {extent(input, 0), extent(input, 1), extent(input, 2), extent(input, 3)});
  }
}

Tensor allocate(dw_tensor& output) {
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      output.ndim, output.shape, output.stride, torch_dtypes()[output.dtype],
      output.device_type == DW_CPU ? aoti_torch_device_type_cpu() : aoti_torch_device_type_cuda(),
      output.device_index, &handle));
  Tensor tensor(handle);
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &output.data));
  return tensor;
}

Tensor allocate_bytes(std::size_t bytes, void** data) {
  const std::int64_t shape = static_cast<std::int64_t>(bytes), stride = 1;
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &shape, &stride, aoti_torch_dtype_uint8(),
                                                  aoti_torch_device_type_cpu(), 0, &handle));
  Tensor tensor(handle);
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, data));
  return tensor;
}

}  // namespace deltaworks_torch
