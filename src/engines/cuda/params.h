// What launch code hands to kernels: one call, plain data, shared by host and device.
//
// A chunk is 64 tokens of one sequence. Chunks are numbered through the batch; their number is
// known on the device alone (cu_seqlens is not read by the host), so the host books for the most
// that there can be. `Chunks` is made by the first kernel of a call; everything after it uses these
// offsets, which are in bounds whatever cu_seqlens holds.
#pragma once

#include <cstdint>

#include "deltaworks/types.h"

namespace deltaworks::cuda {

inline constexpr int kChunk = 64;  // tokens

// A tensor [tokens or sequences, heads, ...]; strides in elements.
struct View {
  void* data = nullptr;
  DType dtype = DType::kOther;
  std::int64_t stride[4] = {};
  int heads_per = 1;  // heads of the recurrence that share one of this tensor
  bool wide = false;  // rows are of contiguous, aligned 16-byte vectors
};

enum class Gate : std::int32_t { kLog, kLinear, kSoftplus };

struct Params {
  std::int64_t T = 0;
  int N = 0, HO = 0, K = 0, V = 0;
  View q, k, v, g, beta, cu_seqlens, a_log, dt_bias, initial_state, o, final_state;
  float scale = 1;
  bool l2norm = false;
  bool beta_sigmoid = false, beta_doubled = false;
  Gate gate = Gate::kLog;

  // Workspace.
  std::int64_t max_chunks = 0;     // T / 64 + N
  std::int64_t* begin = nullptr;   // [N + 1] first token of a sequence
  std::int64_t* chunks = nullptr;  // [N + 1] chunks before a sequence
  void* solve = nullptr;           // [chunks, HO, 64, 64] (I + A)^-1 diag(beta), io dtype
  void* scores = nullptr;          // [chunks, HO, 64, 64] decayed q k^T on and below the diagonal
  float* rows = nullptr;           // [chunks, HO, 3, 64] cumulative gates, 1/|q|, 1/|k|
};

}  // namespace deltaworks::cuda
