#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz.h"

// What libFuzzer calls for each input. The result 0 lets it keep the input.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  stagecoach::fuzz::Try({reinterpret_cast<const char*>(data), size});
  return 0;
}
