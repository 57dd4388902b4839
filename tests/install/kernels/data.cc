// See data.h. Conversions go through the bits, so that they need no 16-bit type of the compiler,
// and round to nearest even.
#include "data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

using deltaworks::DType;
using deltaworks::Pass;
using deltaworks::Port;
using deltaworks::Problem;

namespace {

constexpr int kFp16Digits = 11,
              kFp16Smallest = -24;  // digits of a normal; exponent of the last bit

template <class T>
T load(const std::byte* from) {
  T x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
template <class T>
void store(std::byte* to, T x) {
  std::memcpy(to, &x, sizeof x);
}

double from_fp16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 31) return std::numeric_limits<double>::quiet_NaN();
  const double size = exponent == 0 ? std::ldexp(fraction, kFp16Smallest)
                                    : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -size : size;
}

// Of the values that tests give: finite, below the largest.
std::uint16_t to_fp16(double x) {
  if (std::isnan(x)) return 0x7e00;
  int exponent;
  std::frexp(x, &exponent);
  const int unit = std::max(exponent - kFp16Digits, kFp16Smallest);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(std::abs(x), -unit)));
  const int bits = units + ((unit - kFp16Smallest) << 10);  // a carry moves into the exponent
  return static_cast<std::uint16_t>(bits | (std::signbit(x) ? 0x8000 : 0));
}

std::uint16_t to_bf16(double x) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  if (std::isnan(x)) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

class Filler {
 public:
  Filler(const Problem& problem, unsigned seed) : problem_(problem), random_(seed) {}

  double value(Port port, std::int64_t width) {
    const deltaworks::Options& options = problem_.options;
    switch (port) {
      case Port::kQ:
        return normal();
      case Port::kK:  // a norm of at most about 1 where the operation does not see to it
        return normal() * (options.use_qk_l2norm ? 1 : 0.7 / std::sqrt(static_cast<double>(width)));
      case Port::kG:
        if (options.safe_gate) return normal();
        return options.gate_domain == deltaworks::GateDomain::kLinear ? uniform() : log_decay();
      case Port::kBeta:
        return options.use_beta_sigmoid ? normal() : uniform();
      default:
        return normal();
    }
  }

 private:
  double normal() { return normal_(random_); }
  double uniform() { return uniform_(random_); }
  // Mostly weak, now and then none at all, strong, or a reset.
  double log_decay() {
    const double choice = uniform();
    if (choice < 0.1) return 0;
    if (choice < 0.15) return -20 * uniform();
    if (choice < 0.17) return -1e4;
    return -0.1 * uniform();
  }

  const Problem& problem_;
  std::mt19937 random_;
  std::normal_distribution<double> normal_{0, 1};
  std::uniform_real_distribution<double> uniform_{0, 1};
};

}  // namespace

std::int64_t Array::count() const {
  if (!desc.present()) return 0;
  std::int64_t count = 1;
  for (int axis = 0; axis < desc.rank; ++axis) count *= desc.shape[axis];
  return count;
}

double Array::get(std::int64_t i) const {
  const std::byte* at = bytes.data() + i * size_of(desc.dtype);
  switch (desc.dtype) {
    case DType::kInt32:
      return load<std::int32_t>(at);
    case DType::kInt64:
      return static_cast<double>(load<std::int64_t>(at));
    case DType::kFloat32:
      return load<float>(at);
    case DType::kBFloat16:
      return std::bit_cast<float>(std::uint32_t{load<std::uint16_t>(at)} << 16);
    default:
      return from_fp16(load<std::uint16_t>(at));
  }
}

void Array::set(std::int64_t i, double x) {
  std::byte* at = bytes.data() + i * size_of(desc.dtype);
  switch (desc.dtype) {
    case DType::kInt32:
      return store(at, static_cast<std::int32_t>(x));
    case DType::kInt64:
      return store(at, static_cast<std::int64_t>(x));
    case DType::kFloat32:
      return store(at, static_cast<float>(x));
    case DType::kBFloat16:
      return store(at, to_bf16(x));
    default:
      return store(at, to_fp16(x));
  }
}

bool is_output(Pass pass, Port port) {
  if (pass == Pass::kForward) return port == Port::kO || port == Port::kFinalState;
  return port >= Port::kDQ;
}

Arrays make_arrays(const Problem& problem, unsigned seed) {
  Arrays arrays;
  Filler filler(problem, seed);
  const std::int64_t T = problem[Port::kQ].shape[0];
  for (int index = 0; index < deltaworks::kPortCount; ++index) {
    const auto port = static_cast<Port>(index);
    Array& x = arrays[index];
    x.desc = problem[port];
    x.bytes.resize(x.count() * size_of(x.desc.dtype));
    if (port == Port::kCuSeqlens) {
      std::int64_t n = 0;
      for (std::int64_t offset :
           {std::int64_t{0}, std::int64_t{1}, std::int64_t{1}, T / 3, T - 3}) {
        x.set(n++, static_cast<double>(offset));
      }
    } else if (x.desc.present()) {
      const std::int64_t width = x.desc.shape[x.desc.rank - 1];
      for (std::int64_t i = 0; i < x.count(); ++i) {
        x.set(i, is_output(problem.pass, port) ? std::nan("") : filler.value(port, width));
      }
    }
  }
  return arrays;
}
