// 16-bit floats: rounding, pairs of them, what rounding leaves, and bounded numbers, against
// core/convert.h bit for bit, but for the payloads of NaN; norms of rows and their scales.
#include "device_kit.cuh"
#include "engines/cuda/device/norm.cuh"

namespace deltaworks::cuda::device_test {
namespace {

// Every 16-bit number, the middle between it and the next one away from zero (the largest finite
// one's is where infinity begins), the floats beside that middle, and random bits.
template <class Half>
std::vector<float> rounding_cases() {
  std::vector<float> x;
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double value = value_of<Half>(bits);
    x.push_back(static_cast<float>(value));
    if (!std::isfinite(value)) continue;
    double next = value_of<Half>(static_cast<std::uint16_t>(bits + 1));
    if (std::isinf(next)) next = 2 * value - value_of<Half>(static_cast<std::uint16_t>(bits - 1));
    const auto middle = static_cast<float>((value + next) / 2);
    x.push_back(middle);
    x.push_back(std::nextafter(middle, 0.0f));
    x.push_back(std::nextafter(middle, std::copysign(HUGE_VALF, middle)));
  }
  for (int i = 0; i < 65536; ++i) {
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random_bits())));
  }
  return x;
}

// Of each x: rounded, paired with the next, the rest, and bounded.
template <class Half>
__global__ void round_kernel(const float* x, int count, Half* halves, std::uint32_t* pairs,
                             float* rests, float* bounds) {
  const int i = thread_number();
  if (i >= count) return;
  halves[i] = from_float<Half>(x[i]);
  pairs[i] = pack<Half>(x[i], x[i + 1 < count ? i + 1 : 0]);
  rests[i] = rest_of<Half>(x[i]);
  bounds[i] = bounded<Half>(x[i]);
}

struct Rounded {
  std::vector<float> x;
  std::vector<std::uint16_t> halves;
  std::vector<std::uint32_t> pairs;
  std::vector<float> rests, bounds;
};
template <class Half>
Rounded round_on_card(const std::string& name) {
  const std::vector<float> x = rounding_cases<Half>();
  const OnCard<float> card_x(x), rests(x.size()), bounds(x.size());
  const OnCard<std::uint16_t> halves(x.size());
  const OnCard<std::uint32_t> pairs(x.size());
  round_kernel<<<blocks_for(x.size()), 256>>>(card_x.get(), static_cast<int>(x.size()),
                                              reinterpret_cast<Half*>(halves.get()), pairs.get(),
                                              rests.get(), bounds.get());
  finish(name);
  return {x, halves.fetch(), pairs.fetch(), rests.fetch(), bounds.fetch()};
}

template <class Half>
bool rounds_to(float x, std::uint32_t bits) {
  return same(value_of<Half>(bits_of<Half>(x)), value_of<Half>(static_cast<std::uint16_t>(bits)));
}

template <class Half>
void test_rounding(const std::string& name, const Rounded& on_card) {
  const std::vector<float>& x = on_card.x;
  int wrong = 0, wrong_pairs = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    wrong += !rounds_to<Half>(x[i], on_card.halves[i]);
    wrong_pairs += !rounds_to<Half>(x[i], on_card.pairs[i] & 0xffff) ||
                   !rounds_to<Half>(x[(i + 1) % x.size()], on_card.pairs[i] >> 16);
  }
  report(name + " rounded", wrong, 0);
  report(name + " packed", wrong_pairs, 0);
}

// Of p significand bits, x in [2^e, 2^(e + 1)): the rest is at most 2^(e - p), so that rounding it
// moves it by 2^(e - 2p - 1) at most, while it is no subnormal 16-bit float: of fp16, whose
// subnormals are 2^-24 apart, that takes x >= 2^-2.
template <class Half>
void test_rests(const std::string& name, const Rounded& on_card) {
  const bool fp16 = std::is_same_v<Half, __half>;
  const double smallest = fp16 ? 0x1p-2 : 0x1p-100, bound = fp16 ? 0x1p-23 : 0x1p-17;
  int wrong = 0;
  double worst = 0;
  for (std::size_t i = 0; i < on_card.x.size(); ++i) {
    const double x = on_card.x[i], head = value_of<Half>(bits_of<Half>(on_card.x[i]));
    if (!std::isfinite(head)) continue;
    const float rest = on_card.rests[i];
    wrong += !(head + rest == x);
    if (std::abs(x) < smallest) continue;
    const double rounded_rest = value_of<Half>(bits_of<Half>(rest));
    keep_largest(worst, std::abs(head + rounded_rest - x) / std::abs(x));
  }
  report(name + " head + rest, exactly", wrong, 0);
  report(name + " head + rounded rest", worst, bound);
}

// Nothing rounds to an infinity any more, what rounds to less than the largest finite number keeps
// its bits, NaN stays.
template <class Half>
void test_bounds(const std::string& name, const Rounded& on_card) {
  constexpr std::uint16_t kLargest = std::is_same_v<Half, __half> ? 0x7bff : 0x7f7f;
  int wrong = 0;
  for (std::size_t i = 0; i < on_card.x.size(); ++i) {
    const float x = on_card.x[i], got = on_card.bounds[i];
    if (std::isnan(x) || (bits_of<Half>(x) & 0x7fff) < kLargest) {
      wrong += !same(got, x);
    } else {
      wrong += bits_of<Half>(got) != (std::signbit(x) ? kLargest | 0x8000 : kLargest);
    }
  }
  report(name + " bounded", wrong, 0);
}

// Of each 16-bit number: its value, and both values of the pair with the one numbered from the end.
template <class Half>
__global__ void widen_kernel(const Half* x, float* wide, float* low, float* high) {
  const int i = thread_number();
  const std::uint32_t pair = static_cast<std::uint32_t>(65535 - i) << 16 | i;
  wide[i] = to_float(x[i]);
  low[i] = unpack<Half>(pair, 0);
  high[i] = unpack<Half>(pair, 1);
}

template <class Half>
void test_widening(const std::string& name) {
  std::vector<std::uint16_t> x(65536);
  for (int i = 0; i < 65536; ++i) x[i] = static_cast<std::uint16_t>(i);
  const OnCard<std::uint16_t> card_x(x);
  const OnCard<float> wide(65536), low(65536), high(65536);
  widen_kernel<<<256, 256>>>(reinterpret_cast<const Half*>(card_x.get()), wide.get(), low.get(),
                             high.get());
  finish(name);
  const std::vector<float> values = wide.fetch(), lows = low.fetch(), highs = high.fetch();
  int wrong = 0, wrong_pairs = 0;
  for (int i = 0; i < 65536; ++i) {
    wrong += !same(values[i], value_of<Half>(x[i]));
    wrong_pairs +=
        !same(lows[i], value_of<Half>(x[i])) || !same(highs[i], value_of<Half>(x[65535 - i]));
  }
  report(name + " widened", wrong, 0);
  report(name + " unpacked", wrong_pairs, 0);
}

// By what a key is multiplied: a power of two that leaves at most 1 of its inverse norm, of fp16
// where the norm is below 1 or above 64; of bf16 always 1.
template <class Half>
__global__ void scale_kernel(const float* x, int count, float* scales) {
  const int i = thread_number();
  if (i < count) scales[i] = row_scale<Half>(x[i]);
}

template <class Half>
void test_scales(const std::string& name) {
  std::vector<float> x;
  for (float exponent = -12; exponent <= 10; exponent += 0.01f) x.push_back(std::exp2(exponent));
  for (int exponent = -12; exponent <= 10; ++exponent) {
    for (float side : {0.0f, 4.0f}) x.push_back(std::nextafter(std::ldexp(1.0f, exponent), side));
    x.push_back(std::ldexp(1.0f, exponent));
  }
  const OnCard<float> card_x(x), scales(x.size());
  scale_kernel<Half>
      <<<blocks_for(x.size()), 256>>>(card_x.get(), static_cast<int>(x.size()), scales.get());
  finish(name);
  const std::vector<float> got = scales.fetch();
  int wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool scaled = std::is_same_v<Half, __half> && (x[i] > 1 || x[i] < 1.0f / 64);
    wrong += got[i] != (scaled ? std::exp2(std::ceil(std::log2(static_cast<double>(x[i])))) : 1.0);
  }
  report(name + " scale of a key", wrong, 0);
}

template <class Half>
__global__ void norm_kernel(const Half* x, float* norms) {
  __shared__ alignas(16) unsigned char memory[Tile<Half, 64, 128>::kBytes];
  const Tile<Half, 64, 128> tile(memory);
  for (int i = threadIdx.x; i < 64 * 128; i += 64) tile.at(i / 128, i % 128) = x[i];
  __syncthreads();
  norms[threadIdx.x] = inverse_norm(tile, threadIdx.x);
}

template <class Half>
void test_norms(const std::string& name) {
  std::vector<float> rows = normal(64 * 128);
  for (int i = 0; i < 64 * 128; ++i) rows[i] *= std::ldexp(1.0f, i / 128 % 16 - 10);
  for (int j = 0; j < 128; ++j) rows[5 * 128 + j] = 0;
  const std::vector<Half> x = rounded<Half>(rows);
  const OnCard<Half> card_x(x);
  const OnCard<float> norms(64);
  norm_kernel<<<1, 64>>>(card_x.get(), norms.get());
  finish(name);
  const std::vector<float> got = norms.fetch();
  double worst = 0;
  for (int i = 0; i < 64; ++i) {
    double sum = 1e-6;
    for (int j = 0; j < 128; ++j) sum += std::pow(static_cast<float>(x[i * 128 + j]), 2.0);
    keep_largest(worst, std::abs(got[i] * std::sqrt(sum) - 1));
  }
  report(name + " inverse norms", worst, 128 * 0x1p-24);  // 128 additions, and rsqrt's 2 ulp
}

template <class Half>
void test_half(const std::string& name) {
  const Rounded on_card = round_on_card<Half>(name);
  test_rounding<Half>(name, on_card);
  test_rests<Half>(name, on_card);
  test_bounds<Half>(name, on_card);
  test_widening<Half>(name);
  test_scales<Half>(name);
  test_norms<Half>(name);
}

}  // namespace

void test_halves() {
  test_half<__nv_bfloat16>("bf16");
  test_half<__half>("fp16");
}

}  // namespace deltaworks::cuda::device_test
