// Every rule of validation, and what is legal beside it.
#include "problem/validate.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "deltaworks/plan.h"
#include "kit.h"
#include "problem_rows.h"

namespace deltaworks {
namespace {

using namespace kit;

TEST(Validate, EveryRule) {
  for (const ProblemRow& row : problem_rows()) {
    if (!row.about_description()) continue;
    SCOPED_TRACE(row.text);
    Problem problem = valid_problem(row);
    row.breaks(problem);
    try {
      judge(problem);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const RuleError& error) {
      EXPECT_EQ(error.rule(), row.rule) << name(error.rule());
      EXPECT_EQ(error.status(), row.status);
      EXPECT_EQ(error.what(), row.text);
    }
  }
}

TEST(Validate, EveryRuleHasARow) {
  std::set<Rule> rules;
  for (const ProblemRow& row : problem_rows()) rules.insert(row.rule);
  for (int rule = 0; rule < kRuleCount; ++rule) {
    EXPECT_TRUE(rules.contains(static_cast<Rule>(rule))) << name(static_cast<Rule>(rule));
  }
}

TEST(Validate, TellsTheDims) {
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Dims dims = validate(valid_problem(pass));
    EXPECT_EQ(dims.T, 12);
    EXPECT_EQ(dims.N, 2);
    EXPECT_EQ(dims.K, 16);
    EXPECT_EQ(dims.V, 8);
    EXPECT_EQ(dims.H, 2);
    EXPECT_EQ(dims.HK, 2);
    EXPECT_EQ(dims.HV, 4);
    EXPECT_EQ(dims.HO, 4);
  }
}

// Of every operation: the valid problem, each optional tensor left out, and the second shape of
// each port that has one.
TEST(Validate, EveryOperation) {
  for (int number = 0; number < kOpCount; ++number) {
    const Op op = static_cast<Op>(number);
    SCOPED_TRACE(op_name(op));
    for (Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Problem valid = valid_problem(pass, op);
      Dims dims = make_dims(12, 2, 2, 4, 16, 8);
      dims.N = 2;
      dims.n = op == Op::kGatedDeltaProduct ? 2 : 1;
      EXPECT_EQ(judge(valid), dims);
      EXPECT_EQ(validate(valid), dims);
      for (const PortSpec& spec : ports(op)) {
        SCOPED_TRACE(spec.name);
        Problem problem = valid;
        if (spec.role == Role::kOptional) {
          problem[spec.port] = TensorDesc{};
          for (const PortSpec& other : ports(op)) {
            if (other.primal == spec.port) problem[other.port] = TensorDesc{};
          }
          EXPECT_NO_THROW(judge(problem));
        }
        if (spec.other.rank == 0 || spec.role == Role::kGradient) continue;
        std::vector<std::int64_t> shape;
        for (int axis = 0; axis < spec.other.rank; ++axis) {
          shape.push_back(extent(dims, spec.other.axes[axis]));
        }
        problem = valid;
        for (const PortSpec& each : ports(op)) {
          if (each.primal != spec.port || !problem.has(each.port)) continue;
          problem[each.port] = contiguous(problem[each.port].dtype, shape);
        }
        EXPECT_FALSE(problem == valid);
        EXPECT_NO_THROW(judge(problem));
      }
    }
  }
}

// What looks unusual and is legal.
TEST(Validate, LegalProblems) {
  const auto expect_legal = [](Pass pass, auto change) {
    Problem problem = valid_problem(pass);
    change(problem);
    EXPECT_NO_THROW(validate(problem));
  };
  // Every optional tensor may be absent, and a gradient that no one asks for.
  for (Port port : {Port::kALog, Port::kDtBias, Port::kInitialState}) {
    expect_legal(Pass::kForward, [&](Problem& p) { p[port] = TensorDesc{}; });
  }
  for (Port port : {Port::kDO, Port::kDFinalState, Port::kDQ, Port::kDK, Port::kDV, Port::kDG,
                    Port::kDBeta, Port::kDALog, Port::kDDtBias, Port::kDInitialState}) {
    expect_legal(Pass::kBackward, [&](Problem& p) { p[port] = TensorDesc{}; });
  }
  // Inputs may be broadcast; so may an output's axis of one element.
  for (Port port : {Port::kQ, Port::kK, Port::kV, Port::kG, Port::kBeta, Port::kInitialState}) {
    expect_legal(Pass::kForward, [&](Problem& p) { p[port].stride = {}; });
  }
  const Call single{.dims = make_dims(1, 1, 1, 1, 4, 4), .offsets = {0, 1}};
  Tensors inputs = make_inputs(single, 0);
  Problem problem = prepare("", single, Pass::kForward, inputs).problem;
  problem[Port::kO].stride[0] = problem[Port::kFinalState].stride[0] = 0;
  EXPECT_NO_THROW(validate(problem));
  // Final states in place of the initial ones, whether they are asked for or not.
  for (const bool asked : {true, false}) {
    expect_legal(Pass::kForward, [&](Problem& p) {
      p.options.overwrite_initial_state = true;
      p.options.output_final_state = asked;
      p[Port::kFinalState] = TensorDesc{};
    });
  }
  // A pool of states has rows as it likes.
  for (std::int64_t rows : {0, 1, 100}) {
    expect_legal(Pass::kForward, [&](Problem& p) {
      p[Port::kStateIndices] = contiguous(DType::kInt32, {2});
      p[Port::kInitialState] = contiguous(DType::kFloat32, {rows, 4, 8, 16});
    });
  }
  // No tokens, no sequences, no heads.
  for (const Call& call : {Call{.dims = make_dims(0, 1, 1, 1, 4, 4), .offsets = {0, 0}},
                           Call{.dims = make_dims(5, 1, 1, 1, 4, 4), .offsets = {0}},
                           Call{.dims = make_dims(5, 0, 0, 0, 4, 4), .offsets = {0, 5}}}) {
    Tensors empty = make_inputs(call, 0);
    EXPECT_NO_THROW(validate(prepare("", call, Pass::kForward, empty).problem));
    EXPECT_NO_THROW(validate(prepare("", call, Pass::kBackward, empty).problem));
  }
}

}  // namespace
}  // namespace deltaworks
