// Sizes of the kernels' tiles, a type each: dimensions are padded to these. The eight warps of a
// block share a result as four groups of rows by two halves of its columns.
#pragma once

namespace deltaworks::cuda::sm80 {

template <class HalfT, int kKeyDim, int kValueBlock>
struct Config {
  using Half = HalfT;
  static constexpr int kK = kKeyDim;       // 64, 128 or 256
  static constexpr int kVB = kValueBlock;  // values of a block's state
  static constexpr int kThreads = 256;
  static_assert(kK % 64 == 0 && kVB % 64 == 0);
};

}  // namespace deltaworks::cuda::sm80
