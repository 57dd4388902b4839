// Sizes of the kernels' tiles, a type each: dimensions are padded to these.
#pragma once

namespace deltaworks::cuda::sm80 {

inline constexpr int kThreads = 128;  // of every block but those that find offsets
inline constexpr int kWarps = kThreads / 32;

// Of prepare_chunks.
template <class HalfT, int kKeyDim>
struct PrepConfig {
  using Half = HalfT;
  static constexpr int kK = kKeyDim;                 // 64, 128 or 256
  static constexpr int kBlocks = kK == 256 ? 3 : 5;  // on a multiprocessor, at least
  static_assert(kK % 64 == 0);
};

// Of the kernels that walk: each warp of a block holds the states of 16 values by itself.
template <class HalfT, int kKeyDim, int kStageCount>
struct WalkConfig {
  using Half = HalfT;
  static constexpr int kK = kKeyDim;
  static constexpr int kVB = kWarps * 16;      // values of a block
  static constexpr int kStages = kStageCount;  // chunks in shared memory: this one and the next
  static constexpr int kBlocks = 2;            // on a multiprocessor, at least
  static_assert(kK % 64 == 0);
  static_assert(kStages == 1 || kStages == 2);
};

}  // namespace deltaworks::cuda::sm80
