// What the engine hands to its kernels: one call, with pointers. Plain data only: this header is
// compiled once per instruction set too, so its functions must leave no copy that the linker could
// share between the sets: they are static, or inlined always.
#pragma once

#include <cstdint>

#include "deltaworks/problem.h"
#include "variants/activation.h"

namespace deltaworks::cpu {

struct Tensor {
  void* data = nullptr;
  TensorDesc desc;

  [[gnu::always_inline]] bool present() const { return data != nullptr; }
  [[gnu::always_inline]] DType dtype() const { return desc.dtype; }
};

struct Args {
  Op op{};
  Dims dims;
  Tensor tensors[kPortCount];
  float scale = 1;
  bool l2norm = false;
  GateForm gate = GateForm::kLog;
  BetaForm beta{};

  [[gnu::always_inline]] const Tensor& operator[](Port port) const { return tensors[index(port)]; }

  // First token of sequence n; of n = N, the end of the last one.
  [[gnu::always_inline]] std::int64_t offset(std::int64_t n) const {
    const Tensor& cu = (*this)[Port::kCuSeqlens];
    const std::int64_t at = n * cu.desc.stride[0];
    return cu.dtype() == DType::kInt32 ? static_cast<const std::int32_t*>(cu.data)[at]
                                       : static_cast<const std::int64_t*>(cu.data)[at];
  }
  [[gnu::always_inline]] std::int64_t length(std::int64_t n) const {
    return offset(n + 1) - offset(n);
  }

  // Heads of a group share every tensor that has fewer heads than the state.
  [[gnu::always_inline]] std::int64_t groups() const { return dims.H < dims.HV ? dims.H : dims.HV; }
  [[gnu::always_inline]] std::int64_t group_size() const {
    return groups() == 0 ? 1 : dims.HO / groups();
  }
};

// A run of elements in memory: of a row of a tensor, or of a column of a [T, heads] one.
struct Run {
  void* data;
  DType dtype;
  std::int64_t stride;  // in elements

  // The run without its first `count` elements.
  [[gnu::always_inline]] Run after(std::int64_t count) const {
    const std::int64_t bytes = count * stride * static_cast<std::int64_t>(size_of(dtype));
    return {static_cast<char*>(data) + bytes, dtype, stride};
  }
};

// Row `head` of token t; a tensor with fewer heads than HO is shared by consecutive ones.
static inline Run row(const Args& args, Port port, std::int64_t t, std::int64_t head) {
  const Tensor& x = args[port];
  const std::int64_t shared = head / (args.dims.HO / x.desc.shape[1]);
  const std::int64_t at = t * x.desc.stride[0] + shared * x.desc.stride[1];
  return {static_cast<char*>(x.data) + at * static_cast<std::int64_t>(size_of(x.dtype())),
          x.dtype(), x.desc.stride[2]};
}

// Row v of the state of (sequence, head).
static inline Run state_row(const Args& args, Port port, std::int64_t n, std::int64_t head,
                            std::int64_t v) {
  const Tensor& x = args[port];
  const std::int64_t at = n * x.desc.stride[0] + head * x.desc.stride[1] + v * x.desc.stride[2];
  return {static_cast<char*>(x.data) + at * static_cast<std::int64_t>(size_of(x.dtype())),
          x.dtype(), x.desc.stride[3]};
}

// Scalar of (token, head) of a [T, HO] tensor.
static inline float scalar(const Args& args, Port port, std::int64_t t, std::int64_t head) {
  const Tensor& x = args[port];
  return load<float>(x.dtype(), x.data, t * x.desc.stride[0] + head * x.desc.stride[1]);
}

static inline void store_scalar(const Args& args, Port port, std::int64_t t, std::int64_t head,
                                float value) {
  const Tensor& x = args[port];
  store(x.dtype(), x.data, t * x.desc.stride[0] + head * x.desc.stride[1], value);
}

// Parameter of a head; 0 where the tensor is absent.
static inline float parameter(const Args& args, Port port, std::int64_t head) {
  const Tensor& x = args[port];
  return x.present() ? load<float>(x.dtype(), x.data, head * x.desc.stride[0]) : 0.0f;
}

static inline float gate(const Args& args, std::int64_t t, std::int64_t head) {
  return effective_gate(args.gate, scalar(args, Port::kG, t, head),
                        parameter(args, Port::kALog, head), parameter(args, Port::kDtBias, head));
}

static inline float beta(const Args& args, std::int64_t t, std::int64_t head) {
  return effective_beta(args.beta, scalar(args, Port::kBeta, t, head));
}

}  // namespace deltaworks::cpu
