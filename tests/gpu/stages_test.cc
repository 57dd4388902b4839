// What the plan decides by a card's shared memory: a walk with one stage, which large cards never
// choose, has the bits of one with two.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "card_memory.h"
#include "engines/cuda/launch.h"
#include "engines/cuda/params.h"
#include "engines/cuda/plan.h"

namespace deltaworks {
namespace {

constexpr std::int64_t kTokens = 2700;  // cut into several segments
constexpr int kHeads = 2, kDim = 128;

template <class T>
class OnCard {
 public:
  explicit OnCard(const std::vector<T>& x) : memory_(x.size() * sizeof(T)) {
    memory_.put(x.data());
  }
  // [tokens, heads, dim], or [tokens, heads] with dim = 1.
  cuda::View view(DType dtype, std::int64_t dim) const {
    return {
        .data = memory_.get(), .dtype = dtype, .stride = {kHeads * dim, dim, 1}, .wide = dim > 1};
  }
  CardMemory& memory() { return memory_; }

 private:
  CardMemory memory_;
};

// Upper halves of floats are bfloat16 numbers.
std::vector<std::uint16_t> random_rows(std::mt19937& bits) {
  std::normal_distribution<float> normal(0, 0.3f);
  std::vector<std::uint16_t> rows(kTokens * kHeads * kDim);
  for (std::uint16_t& x : rows) {
    const float value = normal(bits);
    std::uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    x = static_cast<std::uint16_t>(word >> 16);
  }
  return rows;
}

TEST(CudaStages, OneHasTheBitsOfTwo) {
  std::mt19937 bits(1);
  std::uniform_real_distribution<float> uniform(0, 1);
  std::vector<float> gates(kTokens * kHeads), betas(kTokens * kHeads);
  for (float& x : gates) x = -0.05f * uniform(bits);
  for (float& x : betas) x = uniform(bits);
  const std::vector<std::uint16_t> q = random_rows(bits), k = random_rows(bits),
                                   v = random_rows(bits);
  OnCard<std::uint16_t> card_q(q), card_k(k), card_v(v), card_o(q);
  OnCard<float> card_g(gates), card_beta(betas);
  OnCard<std::int64_t> offsets({0, kTokens});

  cuda::Params p;
  p.T = kTokens;
  p.N = 1;
  p.HO = kHeads;
  p.K = p.V = kDim;
  p.l2norm = true;
  p.q = card_q.view(DType::kBFloat16, kDim);
  p.k = card_k.view(DType::kBFloat16, kDim);
  p.v = card_v.view(DType::kBFloat16, kDim);
  p.o = card_o.view(DType::kBFloat16, kDim);
  p.g = card_g.view(DType::kFloat32, 1);
  p.beta = card_beta.view(DType::kFloat32, 1);
  p.cu_seqlens = {.data = offsets.memory().get(), .dtype = DType::kInt64, .stride = {1}};
  cuda::divide(p, cuda::card(0).limits, false);
  ASSERT_GT(p.max_further, 1);

  std::vector<std::uint16_t> outputs[2] = {q, q};
  for (int stages : {1, 2}) {
    p.stages = stages;
    card_o.memory().put(std::vector<std::uint16_t>(q.size(), 0xffff).data());
    const CardMemory workspace(cuda::workspace_bytes(p));
    cuda::load_kernels(Op::kGatedDeltaNet, p, 0);
    cuda::launch_forward(Op::kGatedDeltaNet, p, 0, workspace.get(), nullptr);
    check(cudaDeviceSynchronize());
    card_o.memory().fetch(outputs[stages - 1].data());
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_NE(outputs[0], std::vector<std::uint16_t>(q.size(), 0xffff));
}

}  // namespace
}  // namespace deltaworks
