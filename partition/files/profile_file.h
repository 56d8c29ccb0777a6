#ifndef STAGECOACH_PARTITION_FILES_PROFILE_FILE_H_
#define STAGECOACH_PARTITION_FILES_PROFILE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/profile.h"

namespace stagecoach::partition {

// Profiles as JSON, described with an example in docs/profiles.md:
//
//   {"format": "stagecoach-profile", "version": 1, "model": "mlp", "micro_batch_rows": [16, 32],
//    "feed": {"bytes_per_micro_batch": [0, 0]},
//    "loss": {"workspace_bytes": [128, 256], "bytes_per_micro_batch": 16},
//    "layers": [{"name": "linear", "parameters": 1000, "forward_ms": [1.5, 2.9], ...,
//                "after": ["name", ...]}, ...]}
//
// "updates_in_backward" (Profile) is false by default; the program writes true for its own models.
// "norm_bytes" is what every device tells the others of its gradients' norms
// (Profile::collectives), where they are clipped; 0 by default. "feed" and
// "loss" are what the first and the last stage keep besides (EndMemory). Only "format", "version",
// and of each layer "name", "forward_ms" and its backward time are required. A number of a layer or
// the loss may be a list, with one for each of the sizes in micro_batch_rows (default: [1]). Times
// are in milliseconds, kept to the picosecond. Per layer:
//
//   forward_ms, backward_input_ms, backward_weight_ms; or backward_ms in place of the latter two:
//     half each for a layer with parameters, else all for the input
//   step_ms = 0, flops = 0, spread = 0 (LayerCost::spread)
//   parameters = parameter_bytes / 4, parameter_bytes = 4 * parameters, either = 0 if neither is
//     there; optimizer_bytes = 2 * parameter_bytes; averaged_bytes,
//     other_resident_bytes, working_bytes = 0
//   output_bytes = 0, input_bytes = all outputs that it reads; stash_bytes, weight_stash_bytes,
//     gradient_stash_bytes, workspace_bytes, passing_bytes, skip_area_bytes = 0
//   recompute_stash_bytes: without it the layer cannot do F again
//   input_last_use, output_gradient_last_use = "backward_weight" with parameters, else
//     "backward_input"; output_last_use = "forward"
//   after: the names of the layers whose outputs it reads. Default: the layer listed before it.
//     Layers may be listed in any order; they are put into a topological one, which is the file's
//     where that is one. A graph that turns out to be a chain is one.

// InvalidArgument starts with the line, then the path of the value: a wrong type, a number out of
// range, a wrong count of numbers, an unknown key or version, a name that is empty, twice there or
// not there, a cycle; its message says what is allowed. ResourceExhausted, before anything is read,
// for more than 64 MiB; or for what is nested too deeply.
absl::StatusOr<Profile> ParseProfileJson(absl::string_view text);
absl::StatusOr<Profile> ReadProfileFile(const std::string& path);

// The inverse: reads back as the same profile, except that times are rounded to the picosecond,
// edges sorted by consumer, then producer, and names made valid UTF-8. One layer per line, all its
// fields. Pre-condition: CheckProfile.
std::string ToProfileJson(const Profile& profile);

// InvalidArgument: CheckProfile. Atomic (base/file.h).
absl::Status WriteProfileFile(const std::string& path, const Profile& profile);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_FILES_PROFILE_FILE_H_
