// What the tests of engines share: tensors with storage of their own, calls with random inputs, and
// run(), which takes a call through find_plan and Plan::execute as a user would, with the memory
// around every tensor and behind the workspace under guard.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/convert.h"
#include "deltaworks/plan.h"
#include "problem/ports.h"

namespace deltaworks::kit {

// Memory that no one has written holds this byte: a NaN of every floating type.
inline constexpr std::byte kPoison{0xff};

// A tensor between two guard zones, addressed by the position of an element in logical order.
struct Buffer {
  static constexpr std::int64_t kGuard = 5;  // elements; odd, so that the base is misaligned

  TensorDesc desc;
  std::vector<std::byte> storage;

  explicit Buffer(const TensorDesc& desc);

  std::int64_t count() const;
  std::int64_t offset(std::int64_t i) const;  // of element i in memory, from the base
  void* data() { return storage.data() + kGuard * size_of(desc.dtype); }
  const void* data() const { return storage.data() + kGuard * size_of(desc.dtype); }
  double get(std::int64_t i) const;  // of any dtype
  void set(std::int64_t i, double x);
  void fill(double x);
  // Whether every byte that belongs to no element is still poison.
  bool gaps_untouched() const;
};

using Tensors = std::map<Port, Buffer>;

struct Types {
  DType io = DType::kFloat32, g = DType::kFloat32, beta = DType::kFloat32;
  DType param = DType::kFloat32, state = DType::kFloat32, offset = DType::kInt64;
};
// Every floating tensor of one type.
Types all(DType dtype);

struct Call {
  Dims dims;
  std::vector<std::int64_t> offsets;  // cu_seqlens
  Options options{};
  bool a_log = false, dt_bias = false, initial_state = true;
  Types types{};
  double decay = 1;  // mean of -log(decay) a token, roughly
  Op op = Op::kGatedDeltaNet;
  bool steps_apart = false;  // k, v and beta of sub-steps are [T, n, heads, ...]
  int D_rank = 0;            // 0: no D
  bool z = false;
};

Dims make_dims(std::int64_t T, std::int64_t H, std::int64_t HK, std::int64_t HV, std::int64_t K,
               std::int64_t V);

// The call with another operation: the sizes and options that it does not have are changed to ones
// that it has, and it gets what is its own (sub-steps, D and z).
Call with_op(Call call, Op op);
inline constexpr Op kOps[] = {Op::kGatedDeltaNet, Op::kKimiDeltaAttention, Op::kGatedDeltaNetV2,
                              Op::kGatedDeltaProduct, Op::kMamba2};
// "gdn_cpu"
std::string plan_of(Op op, const char* engine);

// Row-major description of a port's tensor in this call.
TensorDesc describe(const Call& call, const PortSpec& spec);
TensorDesc describe(const Call& call, Port port);
const PortSpec& spec_of(Port port, Op op = Op::kGatedDeltaNet);

// Ports of a pass that the engine writes, all that the given inputs allow.
std::vector<Port> outputs_of(Pass pass, const Tensors& inputs, Op op = Op::kGatedDeltaNet);

// Random inputs of both passes in the range that the options expect. Rows of q and k have a norm
// of at most 1 where the operation does not normalise them: the recurrence does not expand then.
Tensors make_inputs(const Call& call, unsigned seed);

using Layout = std::function<TensorDesc(Port, TensorDesc)>;  // changes the strides of an output

// A call as an engine's user states it, its outputs still poison; the pack points into the inputs
// too, which must outlive it.
struct Prepared {
  Problem problem;
  Pack pack;
  Tensors outputs;
};
Prepared prepare(const std::string& plan, const Call& call, Pass pass, Tensors& inputs,
                 int threads = 1, const Layout& layout = nullptr);

// A poisoned workspace of just the size that a plan asks for, one byte off any alignment, between
// guards.
class Workspace {
 public:
  explicit Workspace(const Plan& plan);
  void* data() { return memory_.data() + kGuard; }
  bool guards_untouched() const;

 private:
  static constexpr std::size_t kGuard = 129;
  std::vector<std::byte> memory_;
};

// Runs one pass on the plan of that name and returns its outputs. Fails the test if another plan
// answers, or if inputs, gaps or guards are written. An initial_state that is overwritten comes
// back as final_state.
Tensors run(const std::string& plan, const Call& call, Pass pass, const Tensors& inputs,
            int threads = 1, const Layout& layout = nullptr);

void expect_same_bits(const Tensors& a, const Tensors& b);
// Whether element i of both has the same bits, in the element's own dtype.
bool same_bits(const Buffer& a, const Buffer& b, std::int64_t i);

// Every axis padded by one, the axes' order in memory reversed.
TensorDesc reversed(TensorDesc desc);
// The same elements under other strides; with a zero stride, elements overwrite one another.
Buffer relaid(const Buffer& tensor, const TensorDesc& desc);

}  // namespace deltaworks::kit
