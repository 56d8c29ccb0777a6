#ifndef STAGECOACH_TESTS_SCHEDULE_MUTATE_H_
#define STAGECOACH_TESTS_SCHEDULE_MUTATE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace stagecoach::schedule {

// Returns `text` after one to three random edits, a function of `seed`: bytes (mostly of
// `meaningful`, which must not be empty) changed and inserted, bytes removed, pieces repeated and
// swapped.
std::string Mutate(std::string text, uint64_t seed, absl::string_view meaningful);

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_TESTS_SCHEDULE_MUTATE_H_
