// Status codes and the one exception type of the library. The text of an error names the operation,
// the tensor, what was expected and what came; it is the same through every binding.
//
//   try {
//     gated_delta_net_forward(call, workspace);
//   } catch (const Error& error) {
//     if (error.status() == Status::kNotSupported) ...
//   }
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace deltaworks {

enum class Status : std::int32_t {
  kOk = 0,
  kInvalidValue = 1,  // shapes, combinations, option values (Python: ValueError)
  kInvalidType = 2,   // dtypes (Python: TypeError)
  kNotSupported = 3,  // valid, but no engine takes it (Python: NotSupportedError)
  kInternal = 4,      // a defect of the library or of the machine (Python: RuntimeError)
};

// What every function of the C++ headers throws.
class Error : public std::runtime_error {
 public:
  Error(Status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  Status status() const { return status_; }

 private:
  Status status_;
};

}  // namespace deltaworks
