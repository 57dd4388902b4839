// See environment.h.
#include "core/environment.h"

#include <cstdlib>
#include <optional>

#include "core/strings.h"
#include "deltaworks/status.h"

namespace deltaworks {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::optional<LogLevel> parse_log_level(const std::string& text) {
  if (text.empty() || text == "off") return LogLevel::kOff;
  if (text == "calls") return LogLevel::kCalls;
  if (text == "args") return LogLevel::kArgs;
  if (text == "stats") return LogLevel::kStats;
  return std::nullopt;
}

// Read when the library is loaded: nothing is decided on the way of a call, where a fork could find
// it half done.
const std::string engine = variable("DELTAWORKS_ENGINE");
const std::string level_text = variable("DELTAWORKS_LOG");
const std::optional<LogLevel> level = parse_log_level(level_text);
const std::string check_text = variable("DELTAWORKS_CHECK");

}  // namespace

const std::string& forced_engine() { return engine; }

LogLevel log_level() {
  if (!level) {
    throw Error(Status::kInvalidValue,
                cat("DELTAWORKS_LOG must be off, calls, args or stats, got ", level_text));
  }
  return *level;
}

bool checks_data() {
  if (check_text.empty() || check_text == "0") return false;
  if (check_text == "1") return true;
  throw Error(Status::kInvalidValue, cat("DELTAWORKS_CHECK must be 0 or 1, got ", check_text));
}

}  // namespace deltaworks
