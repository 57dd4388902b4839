// Elements of tensors, and the activations of gates and beta against variants/activation.h in
// double precision. Where a bound differs from input to input, errors are in units of it. ulp is
// 2^-23: the relative distance of floats at most. CUDA's expf is within 2 ulp, logf and log1pf
// within 1, sums, products and quotients within half of one.
#include <algorithm>

#include "device_kit.cuh"
#include "engines/cuda/device/gate.cuh"
#include "variants/activation.h"

namespace deltaworks::cuda::device_test {
namespace {

constexpr double kUlp = 0x1p-23;
constexpr float kInf = HUGE_VALF;
constexpr int kStride = 3;  // elements between those that a test uses

std::vector<float> uniform(std::size_t count, float low, float high) {
  std::uniform_real_distribution<float> distribution(low, high);
  std::vector<float> x(count);
  for (float& each : x) each = distribution(random_bits);
  return x;
}
void append(std::vector<float>& x, const std::vector<float>& more) {
  x.insert(x.end(), more.begin(), more.end());
}

double in_units(double error, double bound) { return error == 0 ? 0 : error / bound; }

View view(void* data, DType dtype, std::int64_t stride) {
  View x;
  x.data = data;
  x.dtype = dtype;
  x.stride[0] = stride;
  return x;
}

__global__ void element_kernel(View from, View to, const float* x, int count, float* loaded) {
  const int i = thread_number();
  if (i >= count) return;
  loaded[i] = load_element(from, i * from.stride[0]);
  store_element(to, i * to.stride[0], x[i]);
}

// Loads of what the host stored, stores of numbers that are to be rounded, and what lies between.
void test_elements(DType dtype) {
  const std::string name = deltaworks::name(dtype);
  std::vector<float> x = {0.0f,    -0.0f,  1.0f,    -1.0f, 65504.0f, 65520.0f, 1e38f,
                          3.4e38f, 1e-40f, -1e-30f, 6e-8f, kInf,     -kInf,    NAN};
  append(x, normal(1000));
  const std::size_t bytes = x.size() * kStride * size_of(dtype);
  std::vector<unsigned char> stored(bytes, 0xff);
  for (std::size_t i = 0; i < x.size(); ++i) store(dtype, stored.data(), i * kStride, x[i]);
  const OnCard<unsigned char> from(stored), to(bytes);
  const OnCard<float> card_x(x), loaded(x.size());
  element_kernel<<<blocks_for(x.size()), 256>>>(view(from.get(), dtype, kStride),
                                                view(to.get(), dtype, kStride), card_x.get(),
                                                static_cast<int>(x.size()), loaded.get());
  finish(name);
  const std::vector<float> got = loaded.fetch();
  const std::vector<unsigned char> written = to.fetch();
  int wrong = 0, wrong_stores = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float expected = load<float>(dtype, stored.data(), i * kStride);
    wrong += !same(got[i], expected);
    wrong_stores += !same(load<float>(dtype, written.data(), i * kStride), expected);
  }
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i / size_of(dtype) % kStride != 0) wrong_stores += written[i] != 0xff;
  }
  report(name + " elements loaded", wrong, 0);
  report(name + " elements stored", wrong_stores, 0);
}

__global__ void parameter_kernel(View present, View absent, float* x) {
  x[threadIdx.x] = parameter(present, threadIdx.x);
  x[threadIdx.x + 32] = parameter(absent, threadIdx.x);
}

void test_parameters() {
  const std::vector<float> values = normal(32 * kStride);
  const OnCard<float> card_values(values), x(64);
  parameter_kernel<<<1, 32>>>(view(card_values.get(), DType::kFloat32, kStride),
                              view(nullptr, DType::kFloat32, kStride), x.get());
  finish("parameters");
  const std::vector<float> got = x.fetch();
  int wrong = 0;
  for (int i = 0; i < 32; ++i) {
    wrong += !same(got[i], values[i * kStride]) || !same(got[i + 32], 0.0f);
  }
  report("parameters of heads, present and absent", wrong, 0);
}

struct GateCase {
  float g, a_log = 0, dt_bias = 0;
};
__global__ void gate_kernel(Gate form, const GateCase* x, int count, float* gates) {
  const int i = thread_number();
  if (i < count) gates[i] = effective_gate(form, x[i].g, x[i].a_log, x[i].dt_bias);
}

// bound_of(case, gate) is the error allowed.
template <class Bound>
void test_gate(const std::string& name, Gate form, const std::vector<GateCase>& cases,
               Bound bound_of) {
  const OnCard<GateCase> card_cases(cases);
  const OnCard<float> gates(cases.size());
  gate_kernel<<<blocks_for(cases.size()), 256>>>(form, card_cases.get(),
                                                 static_cast<int>(cases.size()), gates.get());
  finish(name);
  const std::vector<float> got = gates.fetch();
  const GateForm form_on_host = form == Gate::kLog      ? GateForm::kLog
                                : form == Gate::kLinear ? GateForm::kLinear
                                                        : GateForm::kSoftplus;
  double worst = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto& [g, a_log, dt_bias] = cases[i];
    const double unclamped =
        deltaworks::effective_gate<double>({.form = form_on_host}, g, a_log, dt_bias);
    const double expected = unclamped < -110 ? -110 : unclamped;
    if (std::isnan(expected)) {
      keep_largest(worst, std::isnan(got[i]) ? 0.0 : HUGE_VAL);
    } else {
      keep_largest(worst, in_units(std::abs(got[i] - expected), bound_of(cases[i], expected)));
    }
  }
  report(name, worst, 1);
}

std::vector<GateCase> gate_cases(const std::vector<float>& g) {
  std::vector<GateCase> cases;
  for (float each : g) cases.push_back({each, 3, -2});  // which the form does not read
  return cases;
}

void test_log_gates() {
  std::vector<float> g = {-kInf, -1e38f,   -1e4f, std::nextafter(-110.0f, -kInf),
                          -110,  -109.99f, -1,    -1e-40f,
                          -0.0f, 0,        2,     NAN};
  append(g, uniform(1000, -120, 0));
  test_gate("gate, log", Gate::kLog, gate_cases(g), [](const GateCase&, double) { return 0.0; });
}

// Rounding 1e-10 and the sum moves the logarithm by half an ulp each, absolutely.
void test_linear_gates() {
  std::vector<float> alpha = {0, 1e-38f, 1e-12f, 1e-10f, 1e-6f, 0.5f, 1, NAN};
  alpha.push_back(std::nextafter(1.0f, 0.0f));
  append(alpha, uniform(1000, 0, 1));
  for (float x : uniform(1000, -30, 0)) alpha.push_back(std::exp(x));
  test_gate("gate, linear", Gate::kLinear, gate_cases(alpha),
            [](const GateCase&, double gate) { return kUlp * (1 + std::abs(gate)); });
}

// With x = g + dt_bias: two exponentials, log1p, a product, and the rounding of x by |x| / 2 ulp,
// of which softplus takes on max(1, |x|) / 2 relatively: 5.5 + max(1, |x|) / 2. What expf loses as
// a subnormal, up to 2 * 2^-149, is multiplied by exp(a_log); the product may be a subnormal, too.
double softplus_bound(const GateCase& x, double gate) {
  const double sum = std::abs(static_cast<double>(x.g) + x.dt_bias);
  const double relative = sum < 110 ? 5.5 + std::max(1.0, sum) / 2 : 6.0;
  const double subnormal = (1 + std::exp(static_cast<double>(x.a_log))) * 0x1p-148;
  return relative * kUlp * std::abs(gate) + subnormal;
}

void test_softplus_gates() {
  std::vector<float> g = {-kInf, -1e4f, -110, -90, 0, 20, 110, 1e4f, NAN};
  g.push_back(std::nextafter(20.0f, 0.0f));
  append(g, uniform(400, -90, 30));
  append(g, uniform(50, 19.99f, 20.01f));
  std::vector<GateCase> cases;
  for (float each : g) {
    for (float a_log : {-20.0f, -3.0f, 0.0f, 1.5f, 2.77f, 10.0f, 60.0f}) {
      for (float dt_bias : {0.0f, -4.6f, 1.25f}) cases.push_back({each, a_log, dt_bias});
    }
  }
  // exp(a_log) overflows: the clamp.
  for (float x : {-5.0f, 0.0f, 20.0f, 100.0f}) cases.push_back({x, 100, 0});
  test_gate("gate, softplus", Gate::kSoftplus, cases, softplus_bound);
}

__global__ void decay_kernel(const float* x, int count, float* decays) {
  const int i = thread_number();
  if (i < count) decays[i] = decay_of(x[i]);
}

// __expf is within 2 + 1.173 |x| ulp (CUDA's programming guide). What is no normal float may be
// anything from zero to the least normal one.
void test_decays() {
  std::vector<float> x = {0, -110, -220, -7040, -kInf, NAN, -1e-6f, -87.3f, -87.4f, -104};
  append(x, uniform(100000, -110, 0));
  const OnCard<float> card_x(x), decays(x.size());
  decay_kernel<<<blocks_for(x.size()), 256>>>(card_x.get(), static_cast<int>(x.size()),
                                              decays.get());
  finish("decays");
  const std::vector<float> got = decays.fetch();
  double worst = 0;
  int wrong = !same(got[0], 1.0f) + !std::isnan(got[5]);
  for (int i = 1; i <= 4; ++i) wrong += !(got[i] == 0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) continue;
    const double expected = std::exp(static_cast<double>(x[i]));
    if (expected < 0x1p-126) {
      wrong += !(0 <= got[i] && got[i] <= 1.001 * 0x1p-126);
    } else {
      keep_largest(worst, std::abs(got[i] - expected) / expected);
    }
  }
  report("decay, relative error", worst, (2 + 1.173 * 87.4) * kUlp);
  report("decay, of 0, the clamp and subnormals", wrong, 0);
}

__global__ void beta_kernel(Params p, const float* x, int count, float* betas) {
  const int i = thread_number();
  if (i < count) betas[i] = effective_beta(p, x[i]);
}

// Logits: every number of beta's dtype where exp(-beta) and the sigmoid are normal floats (of fp32
// some), and the ends.
std::vector<float> logits(DType dtype) {
  std::vector<float> x = {-kInf, -1e4f, 1e4f, kInf, NAN};
  if (dtype == DType::kFloat32) {
    append(x, uniform(100000, -85, 85));
    return x;
  }
  for (int i = 0; i < 65536; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float beta = dtype == DType::kFloat16 ? float_from_fp16(bits) : float_from_bf16(bits);
    if (std::abs(beta) <= 85) x.push_back(beta);
  }
  return x;
}

// In fp32 the sigmoid is within 3 ulp: the result has the bits of that sigmoid of this range that
// the double one, or its neighbours at 4 ulp, round to.
void test_beta(DType dtype, bool doubled) {
  const std::string name =
      std::string("beta, sigmoid, ") + deltaworks::name(dtype) + (doubled ? ", doubled" : "");
  const std::vector<float> x = logits(dtype);
  const OnCard<float> card_x(x), betas(x.size());
  Params p;
  p.beta.dtype = dtype;
  p.beta_sigmoid = true;
  p.beta_doubled = doubled;
  beta_kernel<<<blocks_for(x.size()), 256>>>(p, card_x.get(), static_cast<int>(x.size()),
                                             betas.get());
  finish(name);
  const std::vector<float> got = betas.fetch();
  int wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = sigmoid(static_cast<double>(x[i]));
    const double low = round_to(dtype, exact * (1 - 4 * kUlp));
    const double high = round_to(dtype, exact * (1 + 4 * kUlp));
    const double once = doubled ? got[i] / 2.0 : got[i];
    const bool rounded = dtype == DType::kFloat32 || once == low || once == high;
    wrong += std::isnan(x[i]) ? !std::isnan(got[i]) : !(rounded && low <= once && once <= high);
  }
  report(name, wrong, 0);
}

void test_plain_beta() {
  std::vector<float> x = normal(1000, 3);
  x.push_back(NAN);
  const OnCard<float> card_x(x), betas(x.size());
  Params p;
  p.beta.dtype = DType::kBFloat16;
  p.beta_doubled = true;  // counts with the sigmoid alone
  beta_kernel<<<blocks_for(x.size()), 256>>>(p, card_x.get(), static_cast<int>(x.size()),
                                             betas.get());
  finish("beta, plain");
  const std::vector<float> got = betas.fetch();
  int wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i) wrong += !same(got[i], x[i]);
  report("beta, plain", wrong, 0);
}

}  // namespace

void test_gates() {
  constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (DType dtype : kDTypes) test_elements(dtype);
  test_parameters();
  test_log_gates();
  test_linear_gates();
  test_softplus_gates();
  test_decays();
  test_plain_beta();
  for (DType dtype : kDTypes) {
    test_beta(dtype, false);
    test_beta(dtype, true);
  }
}

}  // namespace deltaworks::cuda::device_test
