// Random problems through the public C++ headers, for the sanitizers: most are valid and run on
// memory that ends where their tensors end, some have one or two defects, some malformed data.
//
//   deltaworks_fuzz_problems [count = 20000] [seed = 1]
//
// Prints how many were executed, declined by every engine, and rejected by each rule. Exits with 1
// if anything that the library promises does not hold (trial.h), if a rule was never broken, or if
// under 60 % were executed. Problem i of a seed is problem 0 of seed + i.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>

#include "defects.h"
#include "deltaworks/status.h"
#include "random_problem.h"
#include "trial.h"

extern "C" __attribute__((visibility("default"))) const char* __ubsan_default_options() {
  return "halt_on_error=1:print_stacktrace=1";
}

namespace deltaworks::fuzz {
namespace {

void require_rule(const Outcome& outcome, const std::string& expected) {
  if (outcome.kind == Outcome::kRejected && outcome.rule == expected) return;
  throw Broken("expected the rule " + expected + ", got " +
               (outcome.kind == Outcome::kRejected ? outcome.rule : "no error"));
}

const Defect& random_defect(const Problem& problem, Random& random) {
  while (true) {
    const std::int64_t last = static_cast<std::int64_t>(defects().size()) - 1;
    const Defect& defect = defects()[static_cast<std::size_t>(random.between(0, last))];
    if (defect.fits(problem)) return defect;
  }
}

Outcome try_one(std::uint64_t seed) {
  Random random(seed);
  Problem problem = random_problem(random);
  const double kind = random.uniform();
  if (kind < 0.15) {
    const Defect& defect = random_defect(problem, random);
    defect.make(problem, random);
    const Outcome outcome = try_problem(problem, random);
    require_rule(outcome, name(defect.rule));
    return outcome;
  }
  if (kind < 0.2) {  // two, which may hide each other
    random_defect(problem, random).make(problem, random);
    Problem twice = problem;
    random_defect(problem, random).make(twice, random);
    return try_problem(twice, random);
  }
  if (kind < 0.21) {
    const bool domain = random.chance(0.5);
    const Outcome outcome = try_word(problem, domain);
    require_rule(outcome, name(domain ? Rule::kGateDomain : Rule::kGate));
    return outcome;
  }
  if (kind < 0.28) {
    std::string expected;
    try {
      const Outcome outcome = try_bad_data(problem, random, expected);
      require_rule(outcome, expected);
      return outcome;
    } catch (const Error& error) {  // no plan
      if (error.status() != Status::kNotSupported) throw;
      return {Outcome::kDeclined, ""};
    }
  }
  const Outcome outcome = try_problem(problem, random);
  if (outcome.kind == Outcome::kRejected) throw Broken("a valid problem breaks " + outcome.rule);
  return outcome;
}

int run(std::uint64_t count, std::uint64_t seed) {
  std::uint64_t executed = 0, declined = 0, rejected = 0, broken = 0;
  std::map<std::string, std::uint64_t> by_rule;
  for (int rule = 0; rule < kRuleCount; ++rule) by_rule[name(static_cast<Rule>(rule))] = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    try {
      const Outcome outcome = try_one(seed + i);
      executed += outcome.kind == Outcome::kExecuted;
      declined += outcome.kind == Outcome::kDeclined;
      rejected += outcome.kind == Outcome::kRejected;
      if (outcome.kind == Outcome::kRejected) ++by_rule.at(outcome.rule);
    } catch (const std::exception& error) {
      ++broken;
      std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed + i), error.what());
    }
  }
  const auto print = [count](const char* what, std::uint64_t n) {
    std::printf("%-28s %8llu  %5.1f %%\n", what, static_cast<unsigned long long>(n),
                100.0 * static_cast<double>(n) / static_cast<double>(count));
  };
  print("executed", executed);
  print("declined", declined);
  print("rejected", rejected);
  print("broken promises", broken);
  bool complete = executed * 10 >= count * 6;
  for (const auto& [rule, n] : by_rule) {
    print(("  " + rule).c_str(), n);
    complete = complete && n > 0;
  }
  if (!complete) std::printf("under 60 %% were executed, or a rule was never broken\n");
  return broken == 0 && complete ? 0 : 1;
}

}  // namespace
}  // namespace deltaworks::fuzz

int main(int argc, char** argv) {
  const auto argument = [&](int i, std::uint64_t otherwise) {
    return argc > i ? std::strtoull(argv[i], nullptr, 10) : otherwise;
  };
  return deltaworks::fuzz::run(argument(1, 20000), argument(2, 1));
}
