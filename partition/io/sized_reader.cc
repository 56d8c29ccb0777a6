#include "partition/io/sized_reader.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::partition {
namespace {

using base::ArrayReader;

constexpr base::Int64Range kBytes = {.min = 0, .max = schedule::kMaxSizeBytes};
constexpr base::DoubleRange kMilliseconds = {.min = 0, .max = schedule::kMaxTimeNs / 1e6};

}  // namespace

double MillisecondsOf(double ns) { return std::round(ns * 1e3) / 1e9; }

SizedReader::SizedReader(const nlohmann::json& object, base::ObjectReader reader, size_t sizes)
    : object_(object), reader_(std::move(reader)), sizes_(sizes) {}

absl::StatusOr<std::vector<double>> SizedReader::RequiredTimes(const char* key) {
  ASSIGN_OR_RETURN(std::vector<double> times, Doubles(key, kMilliseconds));
  for (double& time : times) time = std::round(time * 1e9) / 1e3;
  return times;
}

absl::StatusOr<std::vector<double>> SizedReader::OptionalTimes(const char* key) {
  if (!reader_.Has(key)) return std::vector<double>(sizes_, 0.0);
  return RequiredTimes(key);
}

absl::StatusOr<std::vector<double>> SizedReader::OptionalDoubles(const char* key,
                                                                 base::DoubleRange range) {
  if (!reader_.Has(key)) return std::vector<double>(sizes_, 0.0);
  return Doubles(key, range);
}

absl::StatusOr<std::vector<int64_t>> SizedReader::OptionalBytes(const char* key) {
  return OptionalBytes(key, std::vector<int64_t>(sizes_, 0));
}

absl::StatusOr<std::vector<int64_t>> SizedReader::OptionalBytes(const char* key,
                                                                std::vector<int64_t> fallback) {
  if (!reader_.Has(key)) return fallback;
  if (!IsArray(key)) {
    ASSIGN_OR_RETURN(const int64_t value, reader_.RequiredInt64(key, kBytes));
    return std::vector<int64_t>(sizes_, value);
  }
  ASSIGN_OR_RETURN(const ArrayReader array, ArrayOfSizes(key));
  std::vector<int64_t> values(sizes_);
  for (size_t i = 0; i < sizes_; ++i) {
    ASSIGN_OR_RETURN(values[i], array.Int64(i, kBytes));
  }
  return values;
}

bool SizedReader::IsArray(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && found->is_array();
}

absl::StatusOr<ArrayReader> SizedReader::ArrayOfSizes(const char* key) {
  ASSIGN_OR_RETURN(ArrayReader array, reader_.RequiredArray(key));
  if (array.size() == sizes_) return array;
  return reader_.Error(key, absl::StrCat("has ", array.size(), " values, expected one, or ", sizes_,
                                         ": one for each size of micro_batch_rows"));
}

absl::StatusOr<std::vector<double>> SizedReader::Doubles(const char* key, base::DoubleRange range) {
  if (!IsArray(key)) {
    ASSIGN_OR_RETURN(const double value, reader_.RequiredDouble(key, range));
    return std::vector<double>(sizes_, value);
  }
  ASSIGN_OR_RETURN(const ArrayReader array, ArrayOfSizes(key));
  std::vector<double> values(sizes_);
  for (size_t i = 0; i < sizes_; ++i) {
    ASSIGN_OR_RETURN(values[i], array.Double(i, range));
  }
  return values;
}

}  // namespace stagecoach::partition
