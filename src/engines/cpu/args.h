// What the engine hands to its kernels: one call, with pointers. Plain data only: this header is
// compiled once per instruction set too, so its functions must leave no copy that the linker could
// share between the sets: they are static, or inlined always.
#pragma once

#include <cstdint>

#include "deltaworks/problem.h"
#include "variants/activation.h"

namespace deltaworks::cpu {

// The strides are those of the axes that the kernels walk, whatever the tensor's rank: of rows
// (token, sub-step, head, element), of states (sequence, head, value, key). Those that a tensor
// lacks are 0: its elements are shared.
struct Tensor {
  void* data = nullptr;
  DType dtype{};
  std::int64_t size = 0;       // bytes of an element
  std::int64_t heads_per = 1;  // heads of the recurrence that share one of the tensor
  std::int64_t stride[4] = {};
  bool streams = false;  // its rows, whole cache lines, are written past the caches

  [[gnu::always_inline]] bool present() const { return data != nullptr; }
  [[gnu::always_inline]] void* at(std::int64_t element) const {
    return static_cast<char*>(data) + element * size;
  }
};

struct Args {
  Op op{};
  Dims dims;
  Tensor tensors[kPortCount];
  Tensor cu_seqlens;
  float scale = 1;
  bool l2norm = false, beta_guard = false;
  GateMap gate;
  BetaForm beta{};
  std::int64_t sums = 0;  // gradients of parameters that a head of a sequence adds to

  [[gnu::always_inline]] const Tensor& operator[](Port port) const { return tensors[index(port)]; }

  // First token of sequence n; of n = N, the end of the last one.
  [[gnu::always_inline]] std::int64_t offset(std::int64_t n) const {
    const std::int64_t at = n * cu_seqlens.stride[0];
    return cu_seqlens.dtype == DType::kInt32
               ? static_cast<const std::int32_t*>(cu_seqlens.data)[at]
               : static_cast<const std::int64_t*>(cu_seqlens.data)[at];
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

// A step of the recurrence: sub-step `sub` of token t. The gate acts at the first, the output is
// read after the last.
struct Step {
  std::int64_t t, sub;
};
static inline Step step_of(const Args& args, std::int64_t r) {
  if (args.dims.n == 1) return {r, 0};
  return {r / args.dims.n, r % args.dims.n};
}
static inline bool is_first(Step step) { return step.sub == 0; }
static inline bool is_last(const Args& args, Step step) { return step.sub + 1 == args.dims.n; }

// A run of elements in memory: a row of a tensor.
struct Run {
  void* data;
  DType dtype;
  std::int64_t stride;  // in elements
  std::int64_t size;    // bytes of an element

  // The run without its first `count` elements.
  [[gnu::always_inline]] Run after(std::int64_t count) const {
    return {static_cast<char*>(data) + count * stride * size, dtype, stride, size};
  }
};

// Row of a step and a head of the recurrence; of a parameter the step does not matter.
static inline Run row(const Args& args, Port port, Step step, std::int64_t head) {
  const Tensor& x = args[port];
  const std::int64_t shared = x.heads_per == 1 ? head : head / x.heads_per;
  return {x.at(step.t * x.stride[0] + step.sub * x.stride[1] + shared * x.stride[2]), x.dtype,
          x.stride[3], x.size};
}

// Row v of the state of (sequence, head).
static inline Run state_row(const Args& args, Port port, std::int64_t n, std::int64_t head,
                            std::int64_t v) {
  const Tensor& x = args[port];
  return {x.at(n * x.stride[0] + head * x.stride[1] + v * x.stride[2]), x.dtype, x.stride[3],
          x.size};
}

// First element of a row.
static inline float scalar(const Args& args, Port port, Step step, std::int64_t head) {
  const Run run = row(args, port, step, head);
  return load<float>(run.dtype, run.data, 0);
}
static inline void store_scalar(const Args& args, Port port, Step step, std::int64_t head,
                                float value) {
  const Run run = row(args, port, step, head);
  store(run.dtype, run.data, 0, value);
}

// Parameter of a head; 0 where the tensor is absent.
static inline float parameter(const Args& args, Port port, std::int64_t head) {
  return args[port].present() ? scalar(args, port, {0, 0}, head) : 0.0f;
}

}  // namespace deltaworks::cpu
