// Element types, devices, and tensors: a description says where the elements of a tensor lie
// relative to its base pointer, a view adds the pointer. Neither owns memory; both may describe any
// strided memory, expanded (zero-stride) axes included.
//
//   std::vector<float> data(T * H * K);
//   Tensor q = view(data.data(), {T, H, K});                       // row-major
//   Tensor k = view(qkv + H * K, {T, H, K}, {3 * H * K, K, 1});    // a part of a joint projection
//   Tensor v = view(bits, DType::kBFloat16, {T, H, V});            // 16-bit floats of any C++ type
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "deltaworks/status.h"

namespace deltaworks {

enum class DType : std::int32_t {
  kFloat32 = 0,
  kBFloat16 = 1,
  kFloat16 = 2,
  kFloat64 = 3,
  kInt32 = 4,
  kInt64 = 5,
  // No tensor may have these; they are here to be named in errors.
  kBool = 6,
  kUInt8 = 7,
  kInt8 = 8,
  kInt16 = 9,
  kComplex64 = 10,
  kOther = 11,
};

// "float32", "bfloat16", ...
constexpr const char* name(DType dtype) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16",   "float64",
                                    "int32",   "int64",    "bool",      "uint8",
                                    "int8",    "int16",    "complex64", "an unsupported dtype"};
  return kNames[static_cast<int>(dtype)];
}

// Bytes an element; 0 for those that no tensor may have. Inlined always: code that is compiled for
// several instruction sets must not leave copies for the linker to choose from.
[[gnu::always_inline]] constexpr std::size_t size_of(DType dtype) {
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

enum class DeviceType : std::int32_t { kCpu = 0, kCuda = 1, kOther = 2 };

// "cpu", "cuda"
constexpr const char* name(DeviceType type) {
  return type == DeviceType::kCpu ? "cpu" : type == DeviceType::kCuda ? "cuda" : "another device";
}

// Where memory lies; the CPU has index 0.
struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int32_t index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr int kMaxRank = 4;

// Shape and strides count elements, outermost axis first. A rank above kMaxRank keeps its first
// kMaxRank axes: every tensor of this library has fewer, so it is rejected by its rank.
struct TensorDesc {
  DType dtype = DType::kOther;
  Device device;
  std::int32_t rank = -1;  // -1: the tensor is absent
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};

  [[gnu::always_inline]] bool present() const { return rank >= 0; }
  bool operator==(const TensorDesc&) const = default;
};

// Description of a tensor with the given strides, one an axis; Error(kInvalidValue) otherwise.
inline TensorDesc strided(DType dtype, std::span<const std::int64_t> shape,
                          std::span<const std::int64_t> stride, Device device = {}) {
  if (shape.size() != stride.size()) {
    throw Error(Status::kInvalidValue, "a view needs as many strides as axes, got " +
                                           std::to_string(stride.size()) + " strides of " +
                                           std::to_string(shape.size()) + " axes");
  }
  TensorDesc desc{.dtype = dtype, .device = device};
  desc.rank = static_cast<std::int32_t>(shape.size());
  for (std::size_t axis = 0; axis < shape.size() && axis < kMaxRank; ++axis) {
    desc.shape[axis] = shape[axis];
    desc.stride[axis] = stride[axis];
  }
  return desc;
}

// Row-major description of a dense tensor.
inline TensorDesc contiguous(DType dtype, std::span<const std::int64_t> shape, Device device = {}) {
  TensorDesc desc = strided(dtype, shape, shape, device);
  std::uint64_t stride = 1;  // of shapes that no memory holds it wraps; they are rejected later
  for (int axis = (desc.rank < kMaxRank ? desc.rank : kMaxRank) - 1; axis >= 0; --axis) {
    desc.stride[axis] = static_cast<std::int64_t>(stride);
    stride *= static_cast<std::uint64_t>(desc.shape[axis] > 1 ? desc.shape[axis] : 1);
  }
  return desc;
}
inline TensorDesc contiguous(DType dtype, std::initializer_list<std::int64_t> shape,
                             Device device = {}) {
  return contiguous(dtype, std::span(shape.begin(), shape.size()), device);
}

// A view of memory that somebody else owns. A default one is absent.
struct Tensor {
  void* data = nullptr;
  TensorDesc desc;
};

// Views; without strides, row-major. An operator writes to no input but an initial_state that
// its options overwrite, so that a view of constant memory may be one.
inline Tensor view(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                   Device device = {}) {
  return {const_cast<void*>(data), contiguous(dtype, shape, device)};
}
inline Tensor view(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                   std::initializer_list<std::int64_t> stride, Device device = {}) {
  return {const_cast<void*>(data), strided(dtype, std::span(shape.begin(), shape.size()),
                                           std::span(stride.begin(), stride.size()), device)};
}

template <class T>
concept Element = std::is_same_v<T, float> || std::is_same_v<T, double> ||
    std::is_same_v<T, std::int32_t> || std::is_same_v<T, std::int64_t>;
template <Element T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float>          ? DType::kFloat32
                                  : std::is_same_v<T, double>       ? DType::kFloat64
                                  : std::is_same_v<T, std::int32_t> ? DType::kInt32
                                                                    : DType::kInt64;

template <Element T>
Tensor view(const T* data, std::initializer_list<std::int64_t> shape) {
  return view(data, kDTypeOf<T>, shape);
}
template <Element T>
Tensor view(const T* data, std::initializer_list<std::int64_t> shape,
            std::initializer_list<std::int64_t> stride) {
  return view(data, kDTypeOf<T>, shape, stride);
}

}  // namespace deltaworks
