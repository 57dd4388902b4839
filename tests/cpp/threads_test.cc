// The thread pool: every item once, worker numbers in range, concurrent callers, forked children.
#include "core/threads.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdio>
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

// What default_threads() is in a fresh process with OMP_NUM_THREADS set to `value`.
int default_in_fresh_process(const char* value) {
  char program[4096] = {};
  if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) return -1;
  const std::string command = std::string("OMP_NUM_THREADS=") + value + " " + program +
                              " --gtest_also_run_disabled_tests --gtest_filter=*PrintDefault";
  FILE* output = popen(command.c_str(), "r");
  int threads = -1;
  for (char line[256]; output != nullptr && std::fgets(line, sizeof line, output) != nullptr;) {
    std::sscanf(line, "default threads: %d", &threads);
  }
  if (output != nullptr) pclose(output);
  return threads;
}

TEST(Threads, DISABLED_PrintDefault) { std::printf("default threads: %d\n", default_threads()); }

TEST(Threads, DefaultFollowsOmpNumThreads) {
  EXPECT_EQ(default_in_fresh_process("3"), 3);
  EXPECT_EQ(default_in_fresh_process("1"), 1);
  EXPECT_GE(default_in_fresh_process("nonsense"), 1);
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
