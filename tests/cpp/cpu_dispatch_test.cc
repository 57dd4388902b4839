// The choice of an instruction set: the one asked for runs, with the lanes that it has.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>

#include "deltaworks/status.h"
#include "engines/cpu/dispatch.h"

namespace deltaworks {
namespace {

TEST(CpuDispatch, LanesOfTheSetInUse) {
  const std::map<std::string, int> lanes = {{"SSE4", 4}, {"AVX2", 8}, {"AVX512", 16}, {"NEON", 4}};
  const cpu::Kernels& kernels = cpu::kernels();
  ASSERT_TRUE(lanes.contains(kernels.isa)) << kernels.isa;
  EXPECT_EQ(kernels.lanes, lanes.at(kernels.isa));
  EXPECT_EQ(kernels.value_block % kernels.lanes, 0);
  const char* forced = std::getenv("DELTAWORKS_ISA");
  EXPECT_STREQ(kernels.isa, forced != nullptr ? forced : kernels.isa);
}

// In a process of its own, where nothing has been chosen yet.
TEST(CpuDispatch, UnknownSetIsRefused) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("DELTAWORKS_ISA", "avx2", 1);
        try {
          cpu::kernels();
        } catch (const Error& error) {
          std::cerr << error.what() << std::endl;
          std::_Exit(error.status() == Status::kInvalidValue ? 3 : 4);
        }
      },
      testing::ExitedWithCode(3),
      "^DELTAWORKS_ISA must be one of (AVX512, )?(AVX2, )?(SSE4|NEON), got avx2");
}

}  // namespace
}  // namespace deltaworks
