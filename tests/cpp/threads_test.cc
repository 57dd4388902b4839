// The thread pool: every item once, worker numbers in range, concurrent callers, forked children.
#include "core/threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace deltaworks {
namespace {

// Runs `items` items and returns how often each was done; -1 for a worker out of range.
std::vector<int> count_items(int threads, int items) {
  std::vector<std::atomic<int>> done(items);
  std::atomic<bool> in_range{true};
  parallel_for(threads, items, [&](std::int64_t item, int worker) {
    if (worker < 0 || worker >= threads) in_range = false;
    ++done[item];
  });
  std::vector<int> counts(done.begin(), done.end());
  if (!in_range) counts.assign(items, -1);
  return counts;
}

TEST(Threads, EveryItemOnce) {
  for (int threads : {1, 2, 3, 8}) {
    for (int items : {0, 1, 2, 7, 1000}) {
      EXPECT_EQ(count_items(threads, items), std::vector<int>(items, 1)) << threads << " " << items;
    }
  }
}

TEST(Threads, ManyJobsInARow) {
  for (int job = 0; job < 2000; ++job) {
    ASSERT_EQ(count_items(1 + job % 4, 5), std::vector<int>(5, 1)) << job;
  }
}

TEST(Threads, SeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int job = 0; job < 200; ++job) {
        if (count_items(3, 10) != std::vector<int>(10, 1)) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, NestedCallsRunOnTheirCaller) {
  std::atomic<int> done{0};
  parallel_for(2, 4,
               [&](std::int64_t, int) { parallel_for(2, 3, [&](std::int64_t, int) { ++done; }); });
  EXPECT_EQ(done, 12);
}

TEST(Threads, DefaultIsWhatTheEnvironmentSays) {
  const char* wanted = std::getenv("OMP_NUM_THREADS");
  if (wanted != nullptr && std::atoi(wanted) > 0) {
    EXPECT_EQ(default_threads(), std::atoi(wanted));
  } else {
    EXPECT_GE(default_threads(), 1);
  }
}

// The default is read once, so the test above runs in processes of its own.
TEST(Threads, DefaultFollowsOmpNumThreads) {
  char program[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", program, sizeof program - 1), 0);
  for (const char* value : {"1", "3", "nonsense"}) {
    const std::string command = std::string("OMP_NUM_THREADS=") + value + " " + program +
                                " --gtest_filter=Threads.DefaultIsWhatTheEnvironmentSays";
    EXPECT_EQ(std::system(command.c_str()), 0) << value;
  }
}

TEST(Threads, WorkersTakeTheCallersFloatingPointEnvironment) {
  const int before = std::fegetround();
  for (int mode : {FE_UPWARD, FE_TONEAREST}) {
    std::fesetround(mode);
    std::atomic<int> others{0};
    parallel_for(3, 200, [&](std::int64_t, int) {
      if (std::fegetround() != mode) ++others;
      std::this_thread::sleep_for(std::chrono::microseconds(50));  // let every worker take some
    });
    EXPECT_EQ(others, 0);
  }
  std::fesetround(before);
}

#if defined(__SANITIZE_THREAD__)
// The thread sanitizer does not follow a child of a process with threads.
#else
TEST(Threads, ForkedChildHasItsOwnPool) {
  ASSERT_EQ(count_items(4, 100), std::vector<int>(100, 1));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(count_items(4, 100) == std::vector<int>(100, 1) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(count_items(4, 100), std::vector<int>(100, 1));
}
#endif

}  // namespace
}  // namespace deltaworks
