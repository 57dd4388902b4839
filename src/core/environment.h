// The environment variables of the library, read when it is loaded.
#pragma once

#include <string>

namespace deltaworks {

// DELTAWORKS_ENGINE: the engine that problems without a plan_name run on ("cpu"); "" if not set.
const std::string& forced_engine();

enum class LogLevel {
  kOff,
  kCalls,  // problem, plan, configuration, time
  kArgs,   // and every tensor's description and address
  kStats,  // and range, mean, RMS and number of values that are not finite of every tensor
};
// DELTAWORKS_LOG. Throws Error(kInvalidValue) if it names no level.
LogLevel log_level();

// DELTAWORKS_CHECK: whether data on a card is read back and judged, as it always is on the CPU; off
// if it is not set. Throws Error(kInvalidValue) if it is neither 0 nor 1.
bool checks_data();

}  // namespace deltaworks
