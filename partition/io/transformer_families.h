#ifndef STAGECOACH_PARTITION_IO_TRANSFORMER_FAMILIES_H_
#define STAGECOACH_PARTITION_IO_TRANSFORMER_FAMILIES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/text/json.h"
#include "nlohmann/json_fwd.hpp"
#include "partition/io/transformer_file.h"

namespace stagecoach::partition {

// The values that have been read, from one file or from two in succession.
struct ReadTransformerKeys {
  TransformerDescription description;
  std::map<std::string, std::string> spelled;  // the keys that were present, by their first name

  bool Has(const char* key) const { return spelled.contains(key); }
};

// Returns true if there is a value. Counts as a use of the key.
bool HasValue(const nlohmann::json& document, base::ObjectReader& reader, const char* key);

// Returns "\"stored\", \"flash\"".
std::string Quoted(absl::Span<const char* const> words);

// Returns the index of a key's value among `words`. InvalidArgument names them, and `more`.
absl::StatusOr<size_t> IndexOf(const std::string& word, absl::Span<const char* const> words,
                               const char* key, const std::string& more,
                               const base::ObjectReader& reader);

// Reads the keys of a Hugging Face config.json that only its family has. ReadFamily comes before
// the keys that all transformers have; FinishFamily checks that the rest does not affect costs.
absl::Status ReadFamily(const nlohmann::json& document, base::ObjectReader& reader,
                        ReadTransformerKeys& read);
absl::Status FinishFamily(const nlohmann::json& document, base::ObjectReader& reader);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_TRANSFORMER_FAMILIES_H_
