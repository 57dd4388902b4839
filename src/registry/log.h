// One line a call on stderr, if DELTAWORKS_LOG asks for it.
#pragma once

#include "core/environment.h"
#include "registry/plan.h"

namespace deltaworks {

// Writes the line of an execution that took `seconds`; level is not kOff.
void log_call(LogLevel level, const BuiltPlan& plan, const Pack& pack, double seconds);

}  // namespace deltaworks
