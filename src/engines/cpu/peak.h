// The rate of fp32 multiply-adds that the chosen instruction set reaches here and now.
#pragma once

namespace deltaworks::cpu {

// Lane-operations a second of `threads` threads together, a multiply-add being one, undisturbed by
// other work; measured over about `seconds`. Throws Error (invalid value) unless threads is
// in 1..1024 and seconds in (0, 60].
double peak_rate(int threads, double seconds);

}  // namespace deltaworks::cpu
