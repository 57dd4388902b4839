// One problem tried on the library through its public headers. What the library promises and does
// not keep is a Broken with a text; everything else ends in an Outcome.
#pragma once

#include <stdexcept>
#include <string>

#include "deltaworks/problem.h"
#include "random.h"

namespace deltaworks::fuzz {

struct Broken : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Outcome {
  enum { kExecuted, kDeclined, kRejected } kind;
  std::string rule;  // of a rejected one
};

// Describes, judges, prints, plans and executes twice, with all that must hold on the way.
Outcome try_problem(const Problem& problem, Random& random);

// A call whose memory or cu_seqlens is malformed, of a problem that a plan is found for: refused
// before anything is written. `expected` gets the name of the rule that the call breaks.
Outcome try_bad_data(const Problem& problem, Random& random, std::string& expected);

// A problem whose gate_domain, or gate, is none, which only the C interface can say.
Outcome try_word(const Problem& problem, bool domain);

}  // namespace deltaworks::fuzz
