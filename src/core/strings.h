// The little text building that error messages need.
#pragma once

#include <sstream>
#include <string>

namespace deltaworks {

// Concatenates whatever an ostream prints.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace deltaworks
