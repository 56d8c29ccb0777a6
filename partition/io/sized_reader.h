#ifndef STAGECOACH_PARTITION_IO_SIZED_READER_H_
#define STAGECOACH_PARTITION_IO_SIZED_READER_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "base/text/json.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {

// Reads the values of one object of a profile (profile_file.h) for every micro-batch size: one
// number for all of them, or a list with one for each. Errors are those of ObjectReader.
class SizedReader {
 public:
  // `reader`: that of `object`, which must outlive this.
  SizedReader(const nlohmann::json& object, base::ObjectReader reader, size_t sizes);

  base::ObjectReader& reader() { return reader_; }
  size_t sizes() const { return sizes_; }

  // Read times in ns, rounded to the picosecond; keys end in _ms. Optional ones are 0 if absent.
  absl::StatusOr<std::vector<double>> RequiredTimes(const char* key);
  absl::StatusOr<std::vector<double>> OptionalTimes(const char* key);
  absl::StatusOr<std::vector<double>> OptionalDoubles(const char* key, base::DoubleRange range);
  absl::StatusOr<std::vector<int64_t>> OptionalBytes(const char* key);
  absl::StatusOr<std::vector<int64_t>> OptionalBytes(const char* key,
                                                     std::vector<int64_t> fallback);

 private:
  bool IsArray(const char* key) const;
  absl::StatusOr<base::ArrayReader> ArrayOfSizes(const char* key);
  absl::StatusOr<std::vector<double>> Doubles(const char* key, base::DoubleRange range);

  const nlohmann::json& object_;
  base::ObjectReader reader_;
  size_t sizes_;
};

// Returns milliseconds that read back as the same time, except for the rounding.
double MillisecondsOf(double ns);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_SIZED_READER_H_
