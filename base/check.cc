#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace stagecoach::base {

void PrintAndAbort(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace stagecoach::base
