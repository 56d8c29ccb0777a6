#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/text/csv_reader.h"
#include "engine/data/dataset.h"
#include "engine/data/formats/csv.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/memory_file.h"

namespace stagecoach::fuzz {
namespace {

using Table = std::vector<std::vector<std::string>>;

absl::StatusOr<Table> Split(absl::string_view text) {
  base::CsvReader reader(text);
  Table table;
  std::vector<base::CsvField> record;
  while (true) {
    const absl::StatusOr<bool> found = reader.Next(record);
    if (!found.ok()) return found.status();
    if (!*found) return table;
    std::vector<std::string>& row = table.emplace_back();
    for (const base::CsvField& field : record) row.push_back(field.text);
  }
}

std::string Join(const Table& table) {
  std::string text;
  for (const std::vector<std::string>& row : table) {
    absl::string_view separator = "";
    for (const std::string& field : row) {
      absl::StrAppend(&text, separator, "\"", absl::StrReplaceAll(field, {{"\"", "\"\""}}), "\"");
      separator = ",";
    }
    text += '\n';
  }
  return text;
}

}  // namespace

absl::Status Try(absl::string_view input) {
  RETURN_IF_ERROR(CheckRoundTrip<Table>(input, Split, Join));
  static const MemoryFile file;
  file.Write(input);
  const absl::StatusOr<engine::TrainTest> data = engine::LoadCsv(file.path(), {});
  if (!data.ok()) return data.status();
  for (const auto& set : {data->train, data->test}) {
    std::vector<float> row(static_cast<size_t>(set->features()));
    for (int64_t i = 0; i < set->rows(); ++i) {
      set->CopyNumbers(0, i, absl::MakeSpan(row));
      for (const float value : row) STAGECOACH_CHECK(std::isfinite(value), value);
      STAGECOACH_CHECK(set->label(i) < set->classes(), set->label(i));
    }
  }
  // Read as samples, all rows are encoded in the same way.
  const absl::StatusOr<std::shared_ptr<const engine::Dataset>> samples =
      engine::LoadCsvSamples(file.path(), {}, data->encoding, data->train->classes());
  RETURN_IF_ERROR(samples.status());
  STAGECOACH_CHECK((*samples)->rows() == data->train->rows() + data->test->rows(), input);
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
