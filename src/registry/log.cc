// See log.h. A line is written at once, so that lines of several threads do not mix:
//
//   deltaworks: gdn:fwd:fp32:N2T64H4K64V64 gdn_cpu (AVX2, 2 threads, 8 items) 0.041 ms
//   ... q=float32[64,4,64]@0x7f.. strides [256,64,1] ... q: min -3.1 max 2.9 mean 0.01 rms 1.0
#include "registry/log.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <span>
#include <string>

#include "core/convert.h"
#include "problem/ports.h"
#include "problem/text.h"

namespace deltaworks {
namespace {

std::string list(std::span<const std::int64_t> numbers) {
  std::string text = "[";
  for (std::int64_t number : numbers) text += cat(text.size() > 1 ? "," : "", number);
  return text + "]";
}

void append_description(std::string& line, const TensorDesc& x, const char* port,
                        const void* data) {
  const std::size_t rank = static_cast<std::size_t>(x.rank);
  line += cat(" ", port, "=", name(x.dtype), list(std::span(x.shape).first(rank)), " strides ",
              list(std::span(x.stride).first(rank)), " at ", data);
}

// Calls f(value) for every element.
template <class F>
void for_elements(const TensorDesc& x, const void* data, F&& f) {
  std::int64_t shape[kMaxRank] = {1, 1, 1, 1};
  std::copy_n(x.shape.begin(), x.rank, shape);
  for (std::int64_t a = 0; a < shape[0]; ++a) {
    for (std::int64_t b = 0; b < shape[1]; ++b) {
      for (std::int64_t c = 0; c < shape[2]; ++c) {
        for (std::int64_t d = 0; d < shape[3]; ++d) {
          f(load<double>(x.dtype, data,
                         a * x.stride[0] + b * x.stride[1] + c * x.stride[2] + d * x.stride[3]));
        }
      }
    }
  }
}

void append_statistics(std::string& line, const TensorDesc& x, const char* port, const void* data) {
  double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0, squares = 0;
  std::int64_t finite = 0, not_finite = 0;
  for_elements(x, data, [&](double value) {
    if (!std::isfinite(value)) {
      ++not_finite;
      return;
    }
    low = std::min(low, value);
    high = std::max(high, value);
    sum += value;
    squares += value * value;
    ++finite;
  });
  line += cat(" ", port, "{");
  if (finite > 0) {
    const double count = static_cast<double>(finite);
    line +=
        cat("min ", low, " max ", high, " mean ", sum / count, " rms ", std::sqrt(squares / count));
  }
  if (not_finite > 0) line += cat(finite > 0 ? " " : "", "not finite ", not_finite);
  line += "}";
}

}  // namespace

void log_call(LogLevel level, const BuiltPlan& plan, const Pack& pack, double seconds) {
  const Problem& problem = plan.problem();
  std::string line = cat("deltaworks: ", print(problem), " ", plan.name(), " (",
                         plan.configuration(), ") ", seconds * 1e3, " ms");
  for (const PortSpec& spec : ports(problem.op)) {
    const TensorDesc& x = problem[spec.port];
    if (!x.present()) continue;
    const void* data = pack[spec.port];
    if (level >= LogLevel::kArgs) append_description(line, x, spec.name, data);
    const bool real = spec.kind != Kind::kOffset && spec.kind != Kind::kIndex;
    if (level >= LogLevel::kStats && real && x.device.type == DeviceType::kCpu) {
      // An initial_state that is overwritten holds the final states by now.
      const bool overwritten =
          spec.port == Port::kInitialState && problem.options.overwrite_initial_state;
      append_statistics(line, x, overwritten ? name(Port::kFinalState) : spec.name, data);
    }
  }
  line += "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace deltaworks
