#ifndef STAGECOACH_PARTITION_FILES_PIPEDREAM_PROFILE_H_
#define STAGECOACH_PARTITION_FILES_PIPEDREAM_PROFILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/profile.h"

namespace stagecoach::partition {

// Graphs as the profiler of PipeDream (Narayanan et al. 2019) writes them, a node or an edge per
// line, in any order, edges behind a tab:
//
//   node2 -- Linear(in=4, out=8) -- forward_compute_time=1.5, backward_compute_time=3.1,
//       activation_size=64.000, parameter_size=160.000          (on one line)
//   <tab>node1 -- node2
//
// Times in milliseconds, sizes in bytes; an activation_size may be a list, "[4.0; 8.0]", which is
// summed; " -- stage_id=3" at the end of a node is read over. Nodes that are an Input are data:
// they are no layers, but what they give counts as their readers' input_bytes. Layers are called
// "node2 Linear(in=4, out=8)" and put into a topological order, by their numbers where possible.
// There is one micro-batch size, of 1 row; what layers keep is as in FromImported, and their
// optimizer_bytes, which the file does not have, are 0.
//
// InvalidArgument starts with the line and names the key: anything else, a number out of range, a
// node twice, an edge twice or to a node that is not there, a cycle, no layer.
absl::StatusOr<Profile> ParsePipedreamProfile(absl::string_view text, absl::string_view model);

// The same of a file, up to 64 MiB; the model is called like the file, without its last suffix.
absl::StatusOr<Profile> ReadPipedreamProfile(const std::string& path);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_FILES_PIPEDREAM_PROFILE_H_
