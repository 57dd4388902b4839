// Gates and beta as the recurrence sees them: the formulas of variants/activation.h in fp32.
#pragma once

#include "engines/cuda/device/half.cuh"
#include "engines/cuda/params.h"

namespace deltaworks::cuda::device {

// Element `at` of a tensor of any floating dtype but fp64.
__device__ inline float load_element(const View& x, std::int64_t at) {
  switch (x.dtype) {
    case DType::kBFloat16:
      return to_float(static_cast<const __nv_bfloat16*>(x.data)[at]);
    case DType::kFloat16:
      return to_float(static_cast<const __half*>(x.data)[at]);
    default:
      return static_cast<const float*>(x.data)[at];
  }
}
__device__ inline void store_element(const View& x, std::int64_t at, float value) {
  switch (x.dtype) {
    case DType::kBFloat16:
      static_cast<__nv_bfloat16*>(x.data)[at] = from_float<__nv_bfloat16>(value);
      break;
    case DType::kFloat16:
      static_cast<__half*>(x.data)[at] = from_float<__half>(value);
      break;
    default:
      static_cast<float*>(x.data)[at] = value;
  }
}

// A parameter of a head; 0 where the tensor is absent.
__device__ inline float parameter(const View& x, int head) {
  return x.data == nullptr ? 0.0f : load_element(x, head * x.stride[0]);
}

// The logarithm of the decay, clamped where its exp is 0 anyway: that keeps -inf out of sums.
__device__ inline float effective_gate(Gate form, float g, float a_log, float dt_bias) {
  if (form == Gate::kLinear) {
    g = logf(g + 1e-10f);
  } else if (form == Gate::kSoftplus) {
    const float x = g + dt_bias;
    g = -expf(a_log) * (x >= 20 ? x : log1pf(expf(x)));
  }
  return g < -110.0f ? -110.0f : g;  // NaN stays
}

// exp of a sum of gates, to some 1e-5 of itself: operands have 16 bits.
__device__ inline float decay_of(float gates) { return __expf(gates); }

// The sigmoid is rounded to beta's dtype before it is doubled.
__device__ inline float effective_beta(const Params& p, float beta) {
  if (!p.beta_sigmoid) return beta;
  float x = 1 / (1 + expf(-beta));
  if (p.beta.dtype == DType::kBFloat16) x = to_float(from_float<__nv_bfloat16>(x));
  if (p.beta.dtype == DType::kFloat16) x = to_float(from_float<__half>(x));
  return p.beta_doubled ? 2 * x : x;
}

}  // namespace deltaworks::cuda::device
