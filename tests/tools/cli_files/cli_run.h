#ifndef STAGECOACH_TESTS_TOOLS_CLI_FILES_CLI_RUN_H_
#define STAGECOACH_TESTS_TOOLS_CLI_FILES_CLI_RUN_H_

#include <string>

#include "tests/tools/cli_files/cli_file.h"

namespace stagecoach::tools {

// Carries out the steps of a case of `file` in a folder for the running test. The first that is not
// as expected fails the test, with the file, the line, and what the last command printed.
void PerformCliCase(const std::string& file, const CliCase& test);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_CLI_FILES_CLI_RUN_H_
