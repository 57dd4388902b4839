// Names and sizes of element types, and dense descriptions.
#include "deltaworks/types.h"

namespace deltaworks {

const char* name(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kFloat64:
      return "float64";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kBool:
      return "bool";
    case DType::kUInt8:
      return "uint8";
    case DType::kInt8:
      return "int8";
    case DType::kInt16:
      return "int16";
    case DType::kComplex64:
      return "complex64";
    case DType::kOther:
      break;
  }
  return "an unsupported dtype";
}

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    default:
      return 0;
  }
}

TensorDesc contiguous(DType dtype, std::initializer_list<std::int64_t> shape, Device device) {
  TensorDesc desc{.dtype = dtype, .device = device};
  desc.rank = static_cast<std::int32_t>(shape.size());
  int axis = 0;
  for (std::int64_t size : shape) desc.shape[axis++] = size;
  std::int64_t stride = 1;
  for (axis = desc.rank - 1; axis >= 0; --axis) {
    desc.stride[axis] = stride;
    stride *= desc.shape[axis];
  }
  return desc;
}

}  // namespace deltaworks
