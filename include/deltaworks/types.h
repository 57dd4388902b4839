// Element types, devices and tensor descriptions. A description says where the elements of a tensor
// lie relative to its base pointer; it owns nothing and may describe any strided memory, expanded
// (zero-stride) axes included.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

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
const char* name(DType dtype);
// Bytes an element; 0 for those that no tensor may have.
std::size_t size_of(DType dtype);

enum class DeviceType : std::int32_t { kCpu = 0, kCuda = 1, kOther = 2 };

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

  bool present() const { return rank >= 0; }
  bool operator==(const TensorDesc&) const = default;
};

// Row-major description of a dense tensor.
TensorDesc contiguous(DType dtype, std::initializer_list<std::int64_t> shape, Device device = {});

}  // namespace deltaworks
