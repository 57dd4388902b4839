// Random numbers that are the same on every machine and standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <random>

namespace deltaworks::fuzz {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  // An integer of [low, high]; the tiny bias of the remainder does not matter here.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    return std::sqrt(-2 * std::log(1 - uniform())) * std::cos(6.283185307179586 * uniform());
  }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace deltaworks::fuzz
