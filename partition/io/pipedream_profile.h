#ifndef STAGECOACH_PARTITION_IO_PIPEDREAM_PROFILE_H_
#define STAGECOACH_PARTITION_IO_PIPEDREAM_PROFILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/cost/profile.h"

namespace stagecoach::partition {

// Parses graphs as the profiler of PipeDream (Narayanan et al. 2019) writes them, a node or an edge
// per line, in any order, edges after a tab:
//
//   node2 -- Linear(in=4, out=8) -- forward_compute_time=1.5, backward_compute_time=3.1,
//       activation_size=64.000, parameter_size=160.000          (on one line)
//   <tab>node1 -- node2
//
// Times are in milliseconds, sizes in bytes; an activation_size may be a list, "[4.0; 8.0]", which
// is summed; " -- stage_id=3" at the end of a node is ignored. Nodes that are an Input are data:
// they are not layers, but their outputs count as their readers' input_bytes. Layers are named
// "node2 Linear(in=4, out=8)" and put into a topological order, by their numbers where possible.
// There is one micro-batch size, 1; what layers keep is as in FromImported, and their
// optimizer_bytes, which the file does not have, are 0.
//
// InvalidArgument starts with the line and names the key: anything else, a number out of range, a
// duplicate node or edge, an edge to a nonexistent node, a cycle, no layer.
absl::StatusOr<Profile> ParsePipedreamProfile(absl::string_view text, absl::string_view model);

// Reads the same from a file, up to 64 MiB; the model is named after the file, without its last
// suffix.
absl::StatusOr<Profile> ReadPipedreamProfile(const std::string& path);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_PIPEDREAM_PROFILE_H_
