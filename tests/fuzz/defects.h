// One way at least to break every rule about a description (src/problem/rules.h).
#pragma once

#include <span>

#include "deltaworks/problem.h"
#include "problem/rules.h"
#include "random.h"

namespace deltaworks::fuzz {

struct Defect {
  Rule rule;  // the first that a valid problem breaks with this defect
  bool (*fits)(const Problem&);
  void (*make)(Problem&, Random&);
};

std::span<const Defect> defects();

}  // namespace deltaworks::fuzz
