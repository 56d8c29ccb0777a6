#ifndef STAGECOACH_ENGINE_DATA_DATA_FILES_H_
#define STAGECOACH_ENGINE_DATA_DATA_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace stagecoach::engine {

// Returns the files that a spec of data (DataSource::spec) names, in the order of their samples;
// there is at least one. A name that exists is that file, whatever its characters. Otherwise commas
// separate several names, and a name may be a pattern of glob(7), such as "part-*.csv", which
// stands for the files that match, in the order of their bytes. A folder of shards is its files in
// that order: all end in .csv, all in .jsonl, all in .txt, all in .bin or all in .npy, compressed
// (.gz) or not. Beside them it has nothing but hidden files and descriptions: names that begin with
// "_" or end in .json or .md. It is none if a file is called as in one of the folders with a
// meaning of their own (train.bin, x_train.npy, data_batch_1.bin). Everything else is returned as
// it is, whether it exists or not.
//
// UsageError: an empty name, or a file that is named twice, by whatever path. NotFound: nothing
// matches a pattern.
absl::StatusOr<std::vector<std::string>> DataFilesOf(const std::string& spec);

// Returns the first of them, by which the format is known; the spec itself if there is an error.
std::string FirstDataFile(const std::string& spec);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_DATA_FILES_H_
