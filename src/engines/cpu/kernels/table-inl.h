// Gathers the kernels of one instruction set; each file of isa/ includes it once.
#pragma once

#include "engines/cpu/dispatch.h"
#include "engines/cpu/kernels/backward-inl.h"
#include "engines/cpu/kernels/forward-inl.h"
#include "engines/cpu/kernels/peak-inl.h"
#include "variants/list.h"

namespace deltaworks::cpu::HWY_NAMESPACE {

static std::size_t backward_scratch(const Args& args, std::int64_t count) {
  return with_variant(args.op, [&]<class Variant>() {
    return BackwardScratch<Variant>(args, count, nullptr).size;
  });
}
static std::int64_t backward_sums(const Args& args) {
  return with_variant(args.op,
                      [&]<class Variant>() { return skip_sum<Variant>(args) + args.dims.V; });
}

static void forward_item(const Args& args, std::int64_t n, std::int64_t head, std::int64_t count,
                         std::int64_t v_begin, std::int64_t v_end, float* scratch) {
  with_variant(args.op, [&]<class Variant>() {
    forward<Variant>(args, n, head, count, v_begin, v_end, scratch);
  });
}
static void backward_item(const Args& args, std::int64_t n, std::int64_t head, std::int64_t count,
                          double* sums, float* scratch) {
  with_variant(args.op,
               [&]<class Variant>() { backward<Variant>(args, n, head, count, sums, scratch); });
}

static constexpr Kernels table(const char* isa) {
  return {isa,
          static_cast<std::int32_t>(kLanes),
          static_cast<std::int32_t>(kValueBlock),
          static_cast<std::int32_t>(kHeads),
          static_cast<std::int32_t>(kBackwardHeads),
          forward_floats,
          forward_item,
          backward_scratch,
          backward_sums,
          backward_item,
          peak};
}

}  // namespace deltaworks::cpu::HWY_NAMESPACE
