#ifndef STAGECOACH_TESTS_TOOLS_CUDA_RUN_H_
#define STAGECOACH_TESTS_TOOLS_CUDA_RUN_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/tools/child.h"

// `stagecoach train` of a small network on small data, over two stages unless the arguments say
// otherwise.
namespace stagecoach::tools {

inline constexpr int kRows = 256, kFeatures = 16, kLayers = 3, kWidth = 16, kBatch = 32;
inline constexpr int kSteps = kRows / kBatch;

Arguments SmallRun(const Arguments& more);

// Returns the events of a run that must succeed without warnings.
std::vector<nlohmann::json> EventsOf(const Arguments& more);

// Expects that it ends with nothing but one line that says why.
void ExpectFailure(const Arguments& more, int exit_status,
                   const ::testing::Matcher<std::string>& line);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_CUDA_RUN_H_
