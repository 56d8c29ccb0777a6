#ifndef STAGECOACH_PARTITION_IO_CSV_PROFILE_H_
#define STAGECOACH_PARTITION_IO_CSV_PROFILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/cost/profile.h"

namespace stagecoach::partition {

// Parses a chain of layers as a table, in the order in which they follow each other:
//
//   layer,forward_ms,backward_ms,output_bytes,parameter_bytes
//   linear0,1.5,3.1,65536,16777216
//
// The header is required; its columns may stand in any order, each once. CSV as in RFC 4180, with
// LF or CRLF, quoted fields, blanks around unquoted ones, empty lines and a byte order mark. There
// is one micro-batch size, 1. What layers keep is as in FromImported; the optimizer has twice the
// parameters' bytes (Adam).
//
// InvalidArgument starts with line and column: a column that is unknown (with the nearest known
// one), missing or duplicate, a row of another length, a number out of range, an empty or duplicate
// name, an unterminated quote, no layer.
absl::StatusOr<Profile> ParseCsvProfile(absl::string_view text, absl::string_view model);

// Reads the same from a file, up to 64 MiB; the model is named after the file, without its last
// suffix.
absl::StatusOr<Profile> ReadCsvProfile(const std::string& path);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_CSV_PROFILE_H_
