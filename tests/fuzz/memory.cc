// See memory.h.
#include "memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/convert.h"
#include "random_problem.h"

namespace deltaworks::fuzz {
namespace {

constexpr std::byte kPoison{0xff};

std::vector<std::int64_t> offsets_of(const TensorDesc& desc) {
  std::vector<std::int64_t> offsets{0};
  for (int axis = 0; axis < desc.rank; ++axis) {
    std::vector<std::int64_t> next;
    for (const std::int64_t offset : offsets) {
      for (std::int64_t i = 0; i < desc.shape[axis]; ++i) {
        next.push_back(offset + i * desc.stride[axis]);
      }
    }
    offsets = std::move(next);
  }
  return offsets;
}

double random_gate(const Problem& p, Random& random) {
  const Options& o = p.options;
  const DType dtype = p[Port::kG].dtype;
  if (p.op == Op::kMamba2) return 2 * random.normal();
  if (o.safe_gate) return 2 * random.normal();
  if (o.gate_domain == GateDomain::kLinear) {
    // The gradient at 0 is 1e10 times that of the logarithm, too much for fp16.
    if (random.chance(0.1)) return random.pick({dtype == DType::kFloat16 ? 1e-2 : 0.0, 1e-3, 1.0});
    return 1e-3 + (1 - 1e-3) * random.uniform();
  }
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (random.chance(0.1)) return random.pick({0.0, -0.0, -30.0, -1e4, -kInfinity});
  return -std::abs(random.normal());
}

double random_value(const Problem& p, Port port, Random& random) {
  const Options& o = p.options;
  switch (port) {
    case Port::kQ:
    case Port::kK:
      return (random.chance(0.5) ? 1 : -1) * (0.5 + random.uniform());
    case Port::kG:
      return random_gate(p, random);
    case Port::kBeta:
      return o.use_beta_sigmoid ? 3 * random.normal() : random.uniform();
    case Port::kALog:  // or A, which is negative
      return p.op == Op::kMamba2 ? -0.1 - random.uniform() : random.normal();
    default:
      return random.normal();
  }
}

void fill(const Problem& p, Port port, Memory& tensor, Random& random) {
  if (port == Port::kCuSeqlens) {
    std::vector<std::int64_t> offsets{0};
    while (static_cast<std::int64_t>(offsets.size()) < tensor.count()) {
      offsets.push_back(random.between(0, p[Port::kQ].shape[0]));
    }
    std::sort(offsets.begin(), offsets.end());
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      tensor.set(i, static_cast<double>(offsets[i]));
    }
    return;
  }
  for (std::int64_t i = 0; i < tensor.count(); ++i) tensor.set(i, random_value(p, port, random));
  // A row of zeros; the gradient of its norm is large, too much for fp16.
  const bool rows = port == Port::kQ || port == Port::kK;
  if (rows && tensor.count() > 0 && p[port].dtype != DType::kFloat16 && random.chance(0.2)) {
    const std::int64_t K = p[port].shape[p[port].rank - 1];
    const std::int64_t row = random.between(0, tensor.count() / K - 1);
    for (std::int64_t i = row * K; i < (row + 1) * K; ++i) tensor.set(i, 0);
  }
}

}  // namespace

Memory::Memory(const TensorDesc& desc, Random& random) : desc_(desc), offsets_(offsets_of(desc)) {
  const std::size_t element = size_of(desc.dtype);
  const std::int64_t shift = random.chance(0.5) ? random.between(1, 7) : 0;  // misaligns the base
  std::int64_t low = 0, elements = 0;
  if (!offsets_.empty()) {
    const auto [lowest, highest] = std::minmax_element(offsets_.begin(), offsets_.end());
    low = *lowest;
    elements = *highest - *lowest + 1;
  }
  size_ = static_cast<std::size_t>(shift + elements) * element;
  base_ = static_cast<std::size_t>(shift - low) * element;
  bytes_ = std::make_unique_for_overwrite<std::byte[]>(size_);
  std::fill_n(bytes_.get(), size_, kPoison);
}

std::byte* Memory::at(std::int64_t i) const {
  return bytes_.get() + static_cast<std::int64_t>(base_) +
         offsets_[static_cast<std::size_t>(i)] * static_cast<std::int64_t>(size_of(desc_.dtype));
}

double Memory::get(std::int64_t i) const {
  if (desc_.dtype == DType::kInt32) return *reinterpret_cast<const std::int32_t*>(at(i));
  if (desc_.dtype == DType::kInt64) {
    return static_cast<double>(*reinterpret_cast<const std::int64_t*>(at(i)));
  }
  return load<double>(desc_.dtype, at(i), 0);
}

void Memory::set(std::int64_t i, double value) {
  if (desc_.dtype == DType::kInt32) {
    *reinterpret_cast<std::int32_t*>(at(i)) = static_cast<std::int32_t>(value);
  } else if (desc_.dtype == DType::kInt64) {
    *reinterpret_cast<std::int64_t*>(at(i)) = static_cast<std::int64_t>(value);
  } else {
    store(desc_.dtype, at(i), 0, value);
  }
}

bool Memory::same_elements(const Memory& other) const {
  for (std::int64_t i = 0; i < count(); ++i) {
    if (std::memcmp(at(i), other.at(i), size_of(desc_.dtype)) != 0) return false;
  }
  return true;
}

bool Memory::gaps_untouched() const {
  std::vector<bool> element(size_, false);
  for (std::int64_t i = 0; i < count(); ++i) {
    std::fill_n(element.begin() + (at(i) - bytes_.get()), size_of(desc_.dtype), true);
  }
  for (std::size_t byte = 0; byte < size_; ++byte) {
    if (!element[byte] && bytes_[byte] != kPoison) return false;
  }
  return true;
}

bool Memory::untouched() const {
  return std::all_of(bytes_.get(), bytes_.get() + size_,
                     [](std::byte byte) { return byte == kPoison; });
}

bool Memory::finite() const {
  for (std::int64_t i = 0; i < count(); ++i) {
    if (!std::isfinite(get(i))) return false;
  }
  return true;
}

CallMemory::CallMemory(const Problem& problem, std::uint64_t seed, Random& placement) {
  Random values(seed);
  for (int i = 0; i < kPortCount; ++i) {
    const auto port = static_cast<Port>(i);
    if (!problem.has(port)) continue;
    tensors_[i].emplace(problem[port], placement);
    if (!is_written(port)) fill(problem, port, *tensors_[i], values);
  }
}

Pack CallMemory::pack() const {
  Pack pack;
  for (int port = 0; port < kPortCount; ++port) {
    if (tensors_[port]) pack.pointers[port] = tensors_[port]->base();
  }
  return pack;
}

}  // namespace deltaworks::fuzz
