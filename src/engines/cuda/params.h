// What launch code hands to kernels: one call, plain data, shared by host and device.
//
// A chunk is 64 tokens of one sequence, numbered through the batch. A sequence of more chunks than
// a segment holds is cut: it has its first segment and further ones, which are numbered through the
// batch, too. How many of each there are is known on the device alone (cu_seqlens is not read by
// the host), so the host books for the most that there can be. The first kernel of a call finds
// where they lie; everything after it uses these offsets, which are in bounds whatever cu_seqlens
// holds.
#pragma once

#include <cstdint>

#include "deltaworks/types.h"

namespace deltaworks::cuda {

inline constexpr int kChunk = 64;  // tokens

// The factors of a chunk's rows, as floats: `read_k` and `read_q` [64] of the rows of K S and Q S,
// `write` [64] of the rows that the state is given, the decay of the whole chunk, and whether keys
// are to be multiplied by row_scale (device/norm.cuh); padded to vectors of 16 bytes.
inline constexpr int kReadK = 0, kReadQ = kChunk, kWrite = 2 * kChunk;
inline constexpr int kChunkDecay = 3 * kChunk, kKeysScaled = kChunkDecay + 1;
inline constexpr int kRowFactors = 3 * kChunk + 4;

// Lower triangular [64, 64] matrices lie as their 16 x 16 blocks on and below the diagonal, each as
// the right operand of a tensor-core product (device/mma.cuh): 16 bytes for each lane of a warp.
inline constexpr int kTriangleBlocks = 10;
inline constexpr int kBlockVectors = 32;
inline constexpr int kTriangleVectors = kTriangleBlocks * kBlockVectors;  // of 16 bytes
// `solve` is kept as two such triangles, the rounded one and the rounded rest: rounding moves its
// entries alike where keys repeat, and then errors do not average out.
inline constexpr int kSolveVectors = 2 * kTriangleVectors;

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

  int stages = 0;                   // chunks in a walk's shared memory, 1 or 2
  std::int64_t max_chunks = 0;      // T / 64 + N
  std::int64_t segment_chunks = 0;  // of a segment
  std::int64_t max_further = 0;     // further segments; 0: no sequence is cut

  // Workspace.
  std::int64_t* begin = nullptr;    // [N + 1] first token of a sequence
  std::int64_t* chunks = nullptr;   // [N + 1] chunks before a sequence
  std::int64_t* further = nullptr;  // [N + 1] further segments before a sequence
  void* solve = nullptr;            // [chunks, HO, 2, 10 blocks] (I + A)^-1 diag(beta), io dtype
  void* scores = nullptr;           // [chunks, HO, 10 blocks] decayed q k^T, io dtype
  float* rows = nullptr;            // [chunks, HO, kRowFactors]
  // Of each further segment: the state that enters it, stored as states are; and its transition,
  // which as a right factor takes an entering state to what it leaves of it.
  float* states = nullptr;       // [further, HO, V, K]
  float* transitions = nullptr;  // [further, HO, K, K]
};

}  // namespace deltaworks::cuda
