#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tests/fuzz/support/fuzz.h"

// The function that libFuzzer calls for each input. A target that refuses an input says that the
// input is to blame, and how. No seed is refused: if a format changes, its seeds must change too,
// or little of the reader is tested.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool are_seeds = std::getenv("STAGECOACH_FUZZ_SEEDS") != nullptr;
  const absl::Status status = stagecoach::fuzz::Try({reinterpret_cast<const char*>(data), size});
  if (status.ok()) return 0;
  const bool blames_input = absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) ||
                            absl::IsDataLoss(status);
  STAGECOACH_CHECK(blames_input && !status.message().empty(), status.ToString());
  STAGECOACH_CHECK(!are_seeds, status.ToString());
  return 0;
}
