// A small thread pool. Work is handed out item by item; nothing that is computed may depend on
// which worker takes an item or on how many there are.
#pragma once

#include <cstdint>
#include <type_traits>

namespace deltaworks {

// OMP_NUM_THREADS if set, else the processors this process may run on.
int default_threads();

using ItemFunction = void (*)(void* context, std::int64_t item, int worker);

// Calls f(context, item, worker) once for every item in [0, items), worker in [0, threads). The
// caller is worker 0. Runs on the caller alone where the pool is in use by another thread. The pool
// starts on first use, grows to what is asked for, and is started anew in a forked child.
void parallel_for(int threads, std::int64_t items, ItemFunction f, void* context);

template <class F>
void parallel_for(int threads, std::int64_t items, F&& f) {
  parallel_for(
      threads, items,
      [](void* context, std::int64_t item, int worker) {
        (*static_cast<std::remove_reference_t<F>*>(context))(item, worker);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace deltaworks
