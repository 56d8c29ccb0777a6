#ifndef STAGECOACH_PARTITION_IO_PROFILE_FILE_H_
#define STAGECOACH_PARTITION_IO_PROFILE_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/cost/profile.h"

namespace stagecoach::partition {

// Reads profiles as JSON, described with an example in docs/planner.md:
//
//   {"format": "stagecoach-profile", "version": 1, "model": "mlp", "micro_batch_rows": [16, 32],
//    "feed": {"bytes_per_micro_batch": [0, 0]},
//    "loss": {"workspace_bytes": [128, 256], "bytes_per_micro_batch": 16},
//    "layers": [{"name": "linear", "parameters": 1000, "forward_ms": [1.5, 2.9], ...,
//                "after": ["name", ...]}, ...]}
//
// "message_ms" and "step_overhead_ms" are the Overheads, 0 by default.
// "updates_in_backward" (Profile) is false by default; the program writes true for its own models.
// "norm_bytes" is what every device sends to the others of its gradients' norms
// (Profile::collectives) if gradients are clipped; 0 by default. "feed" and "loss" are what the
// first and the last stage keep in addition, and the feed's "stage_bytes_per_micro_batch" what each
// stage does (EndMemory). Only "format", "version", and each layer's
// "name", "forward_ms" and backward time are required. A number of a layer or the loss may be a
// list, with one for each of the sizes in micro_batch_rows (default: [1]). Times are in
// milliseconds, kept to the picosecond. Per layer:
//
//   forward_ms, backward_input_ms, backward_weight_ms; or backward_ms in place of the latter two:
//     half each for a layer with parameters, else all for the input
//   step_ms = 0, flops = 0, spread = 0 (LayerCost::spread)
//   parameters = parameter_bytes / 4, parameter_bytes = 4 * parameters, both = 0 if neither is
//     set; optimizer_bytes = 2 * parameter_bytes; averaged_bytes,
//     other_resident_bytes, working_bytes, frozen_bytes = 0
//   output_bytes = 0, input_bytes = all outputs that it reads; stash_bytes, weight_stash_bytes,
//     gradient_stash_bytes, workspace_bytes, passing_bytes, skip_area_bytes = 0
//   recompute_stash_bytes: without it the layer cannot repeat F
//   repeated_forward_ms: in its place, for a layer that repeats only some operators of F
//     (RepeatedPart); repeated_stash_bytes, repeated_weight_stash_bytes, repeated_flops = 0
//   input_last_use, output_gradient_last_use = "backward_weight" with parameters, else
//     "backward_input"; output_last_use = "forward"
//   after: the names of the layers whose outputs it reads. Default: the layer listed before it.
//     Layers may be listed in any order; they are put into a topological one, which is the file's
//     order if that is topological. A graph that turns out to be a chain becomes one.

// InvalidArgument starts with the line, then the path of the value: a wrong type, a number out of
// range, a wrong count of numbers, an unknown key or version, a name that is empty, duplicate or
// unknown, a cycle; its message says what is allowed. ResourceExhausted, before anything is read,
// for more than 64 MiB; or for excessive nesting.
absl::StatusOr<Profile> ParseProfileJson(absl::string_view text);
absl::StatusOr<Profile> ReadProfileFile(const std::string& path);

// Writes a profile that reads back unchanged, except that times are rounded to the picosecond,
// edges sorted by consumer, then producer, and names made valid UTF-8. One layer per line, with all
// its fields. Pre-condition: CheckProfile.
std::string ToProfileJson(const Profile& profile);

// Writes the file atomically (base/system/file.h). InvalidArgument: CheckProfile.
absl::Status WriteProfileFile(const std::string& path, const Profile& profile);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_PROFILE_FILE_H_
