#ifndef STAGECOACH_TESTS_ENGINE_DATA_DATA_TEST_UTIL_H_
#define STAGECOACH_TESTS_ENGINE_DATA_DATA_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/data/dataset.h"

namespace stagecoach::engine {

// Returns a directory for the running test, empty at first.
std::string TestDirectory();

// Writes `contents` to the file `name` in `directory` and returns its path.
std::string WriteTestFile(const std::string& directory, const std::string& name,
                          const std::string& contents);

std::string Gzip(const std::string& contents);

// Returns an IDX file of uint8 elements whose header declares `shape`.
std::string IdxFile(const std::vector<uint32_t>& shape, const std::string& elements);

std::vector<float> FeaturesOf(const Dataset& dataset, int64_t row);
std::vector<int32_t> LabelsOf(const Dataset& dataset);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_DATA_DATA_TEST_UTIL_H_
