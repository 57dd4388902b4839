// The pool: workers sleep on a condition variable until a job's generation moves on, then take
// items from one atomic counter. The pool object is never destroyed: a worker may outlive static
// destructors, and a forked child (which has none of the workers) simply leaves it and makes its
// own.
#include "core/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

namespace deltaworks {
namespace {

// Set while this thread runs items: a nested call must not ask for its own pool's turn.
// Not inlined, as c_api.cc says of its own.
[[gnu::noinline]] bool& inside() {
  static constinit thread_local bool value = false;
  return value;
}

class Pool {
 public:
  // False where the pool is in use, by another thread or by a call that this one is nested in.
  bool run(int threads, std::int64_t items, ItemFunction f, void* context) {
    if (inside()) return false;
    std::unique_lock<std::mutex> turn(turn_, std::try_to_lock);
    if (!turn.owns_lock()) return false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      grow(threads - 1);
      f_ = f;
      context_ = context;
      std::fegetenv(&environment_);
      items_ = items;
      next_.store(0, std::memory_order_relaxed);
      active_ = std::min(threads - 1, workers_);
      running_ = active_;
      ++generation_;
    }
    wake_.notify_all();
    take_items(0);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    return true;
  }

 private:
  // A process may be refused more threads; the work is then done by fewer.
  void grow(int workers) {
    while (workers_ < workers) {
      try {
        std::thread(&Pool::work, this, workers_ + 1, generation_).detach();
      } catch (const std::system_error&) {
        return;
      }
      ++workers_;
    }
  }

  void work(int worker, std::uint64_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (worker > active_) continue;
      std::fesetenv(&environment_);
      lock.unlock();
      take_items(worker);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  void take_items(int worker) {
    inside() = true;
    for (;;) {
      const std::int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
      if (item >= items_) break;
      f_(context_, item, worker);
    }
    inside() = false;
  }

  std::mutex turn_;   // held by the thread whose job runs
  std::mutex mutex_;  // guards everything below but next_
  std::condition_variable wake_, done_;
  ItemFunction f_ = nullptr;
  void* context_ = nullptr;
  std::fenv_t environment_{};  // the caller's: whether its subnormals are flushed decides bits
  std::int64_t items_ = 0;
  std::atomic<std::int64_t> next_{0};
  int workers_ = 0;  // started
  int active_ = 0;   // of those, taking part in the present job
  int running_ = 0;  // of those, not yet done
  std::uint64_t generation_ = 0;
};

std::atomic<Pool*> pool{nullptr};
// Registered when the library is loaded: on the way of a call, a fork could find it half done.
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr, std::memory_order_relaxed); });

Pool& the_pool() {
  Pool* current = pool.load(std::memory_order_acquire);
  if (current == nullptr) {
    auto* fresh = new Pool;
    if (pool.compare_exchange_strong(current, fresh)) return *fresh;
    delete fresh;
  }
  return *current;
}

int find_default_threads() {
  if (const char* text = std::getenv("OMP_NUM_THREADS")) {
    int wanted = 0;  // where it is no number, or one beyond int
    std::from_chars(text, text + std::strlen(text), wanted);
    if (wanted > 0) return wanted;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

int default_threads() {
  static std::atomic<int> threads{0};
  int found = threads.load(std::memory_order_relaxed);
  if (found == 0) threads.store(found = find_default_threads(), std::memory_order_relaxed);
  return found;
}

void parallel_for(int threads, std::int64_t items, ItemFunction f, void* context) {
  threads = static_cast<int>(std::min<std::int64_t>(threads, items));
  if (threads > 1 && the_pool().run(threads, items, f, context)) return;
  for (std::int64_t item = 0; item < items; ++item) f(context, item, 0);
}

}  // namespace deltaworks
