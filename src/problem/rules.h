// The rules that a call must keep, by name. A broken rule is an Error whose text says what was
// expected and what came; the name tells callers and tests which rule it was.
#pragma once

#include <cstdint>
#include <string>

#include "deltaworks/status.h"

namespace deltaworks {

enum class Rule : std::int8_t {
  // tensors
  kMissing,
  kPass,
  kRank,
  kSize,
  kGradientOfAbsent,
  kSequences,
  kKeyDim,
  kValueDim,
  kKeyHeads,
  kHeadGroups,
  kShape,
  kOverlap,
  kDevice,
  // dtypes
  kIoDtype,
  kOffsetDtype,
  kIndexDtype,
  kFloat64Alike,
  kGradientDtype,
  kIoAlike,
  kBetaDtype,
  kGateDtype,
  kParameterDtype,
  kStateDtype,
  kStatesAlike,
  // options
  kThreads,
  kScale,
  kNegEigvalNeedsSigmoid,
  kALogNeedsSafeGate,
  kDtBiasNeedsSafeGate,
  kGateDomain,
  kLinearExcludesSafeGate,
  kGate,
  kOptionOfOther,
  kGateNeedsSafeGate,
  kLowerBoundNeedsSafeGate,
  kLowerBoundExcludesSoftplus,
  kLowerBound,
  kGuardNeedsNorm,
  kHouseholder,
  kStepBounds,
  kCadence,
  kCheckpointDtype,
  kPoolNeedsState,
  kOverwriteNeedsState,
  kPoolExcludesAutograd,
  kOverwriteExcludesAutograd,
  kPoolExcludesCheckpoints,
  kFinalStateMissing,
  kFinalStateUnasked,
  kPlanName,
  // data
  kMemory,
  kOffsetsStart,
  kOffsetsDecrease,
  kOffsetsEnd,
};
inline constexpr int kRuleCount = static_cast<int>(Rule::kOffsetsEnd) + 1;

// "missing", "key_heads", ...
const char* name(Rule rule);

class RuleError : public Error {
 public:
  RuleError(Rule rule, Status status, const std::string& text) : Error(status, text), rule_(rule) {}
  Rule rule() const { return rule_; }

 private:
  Rule rule_;
};

}  // namespace deltaworks
