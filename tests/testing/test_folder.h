#ifndef STAGECOACH_TESTS_TESTING_TEST_FOLDER_H_
#define STAGECOACH_TESTS_TESTING_TEST_FOLDER_H_

#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

namespace stagecoach::testing {

// A folder for the running test, which is removed with this object.
class TestFolder {
 public:
  TestFolder() { std::filesystem::create_directories(path_); }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  static std::string Name() {
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    // The names of a parameterized test have slashes.
    return absl::StrReplaceAll(
        absl::StrCat(test.test_suite_name(), "_", test.name(), "_", getpid()), {{"/", "_"}});
  }

  const std::filesystem::path path_ = std::filesystem::path(::testing::TempDir()) / Name();
};

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_TEST_FOLDER_H_
