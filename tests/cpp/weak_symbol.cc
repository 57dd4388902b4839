// An object with a weak symbol, which the test of the kernels' objects must find.
namespace {
int twice(int x);
}

inline int shared_by_the_linker(int x) { return twice(x) + 1; }

namespace {
[[gnu::noinline]] int twice(int x) { return 2 * x; }
}  // namespace

extern int (*const taken)(int);
int (*const taken)(int) = shared_by_the_linker;
