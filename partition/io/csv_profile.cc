#include "partition/io/csv_profile.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/csv_reader.h"
#include "base/text/line.h"
#include "base/text/nearest.h"
#include "partition/io/imported_layer.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {
namespace {

constexpr int64_t kMaxCsvBytes = int64_t{64} << 20;

enum Column : uint8_t { kName, kForward, kBackward, kOutput, kParameters };
constexpr std::array<absl::string_view, 5> kCsvColumns = {"layer", "forward_ms", "backward_ms",
                                                          "output_bytes", "parameter_bytes"};

using base::CsvField;
using base::CsvReader;
using Row = std::vector<CsvField>;

// Returns the next row that is not empty, its fields without surrounding spaces; nothing at the
// end.
absl::StatusOr<Row> NextRow(CsvReader& reader) {
  Row row;
  do {
    ASSIGN_OR_RETURN(const bool found, reader.Next(row));
    if (!found) return Row();
  } while (row.size() == 1 && row.front().text.empty());
  for (CsvField& field : row) absl::StripAsciiWhitespace(&field.text);
  return row;
}

// Returns the column of each field of a row.
absl::StatusOr<std::vector<Column>> ParseHeader(const Row& row) {
  std::vector<Column> columns;
  for (const CsvField& field : row) {
    const std::string name = absl::StrCat("\"", absl::CHexEscape(field.text), "\"");
    const auto* const known = std::find(kCsvColumns.begin(), kCsvColumns.end(), field.text);
    if (known == kCsvColumns.end()) {
      const std::string nearest = base::Nearest(
          field.text, std::vector<std::string>(kCsvColumns.begin(), kCsvColumns.end()));
      const std::string hint =
          nearest.empty() ? absl::StrCat("the columns are: ", absl::StrJoin(kCsvColumns, ","))
                          : absl::StrCat("did you mean \"", nearest, "\"?");
      return CsvReader::ErrorAt(field.position,
                                absl::StrCat("the column ", name, " is not known; ", hint));
    }
    const auto column = static_cast<Column>(known - kCsvColumns.begin());
    if (std::find(columns.begin(), columns.end(), column) != columns.end()) {
      return CsvReader::ErrorAt(field.position,
                                absl::StrCat("the column ", name, " is there twice"));
    }
    columns.push_back(column);
  }
  for (size_t i = 0; i < kCsvColumns.size(); ++i) {
    if (std::find(columns.begin(), columns.end(), i) == columns.end()) {
      return CsvReader::ErrorAt(
          row.empty() ? base::TextPosition() : row.front().position,
          absl::StrCat("the column \"", kCsvColumns[i],
                       "\" is missing; the first line must name the columns: ",
                       absl::StrJoin(kCsvColumns, ",")));
    }
  }
  return columns;
}

absl::Status ParseField(const std::string& text, Column column, ImportedLayer& layer) {
  if (column == kName) {
    layer.name = text;
    return text.empty() ? absl::InvalidArgumentError("must not be empty") : absl::OkStatus();
  }
  if (column == kForward || column == kBackward) {
    ASSIGN_OR_RETURN((column == kForward ? layer.forward_ns : layer.backward_ns),
                     ParseMilliseconds(text));
  } else {
    ASSIGN_OR_RETURN((column == kOutput ? layer.output_bytes : layer.parameter_bytes),
                     ParseByteCount(text));
  }
  return absl::OkStatus();
}

absl::StatusOr<ImportedLayer> ParseRow(const Row& row, const std::vector<Column>& columns) {
  if (row.size() != columns.size()) {
    return CsvReader::ErrorAt(row.front().position,
                              absl::StrCat("the row has ", row.size(), " fields, expected ",
                                           columns.size(), " as in the header"));
  }
  ImportedLayer layer;
  for (size_t i = 0; i < columns.size(); ++i) {
    const absl::Status field = ParseField(row[i].text, columns[i], layer);
    if (!field.ok()) {
      return CsvReader::ErrorAt(row[i].position,
                                absl::StrCat(kCsvColumns[columns[i]], ": ", field.message()));
    }
  }
  layer.optimizer_bytes = std::min(2 * layer.parameter_bytes, schedule::kMaxSizeBytes);
  return layer;
}

}  // namespace

absl::StatusOr<Profile> ParseCsvProfile(absl::string_view text, absl::string_view model) {
  CsvReader reader(text);
  ASSIGN_OR_RETURN(Row row, NextRow(reader));
  ASSIGN_OR_RETURN(const std::vector<Column> columns, ParseHeader(row));
  Profile profile = {.model = std::string(model), .sizes = {SizedLayers()}};
  std::vector<LayerCost>& layers = profile.sizes.front().layers;
  absl::flat_hash_map<std::string, int64_t> line_of_name;
  while (true) {
    ASSIGN_OR_RETURN(row, NextRow(reader));
    if (row.empty()) break;
    const base::TextPosition start = row.front().position;
    ASSIGN_OR_RETURN(const ImportedLayer imported, ParseRow(row, columns));
    const auto [known, inserted] = line_of_name.emplace(imported.name, start.line);
    if (!inserted) {
      return CsvReader::ErrorAt(start, absl::StrCat("layer: \"", absl::CHexEscape(imported.name),
                                                    "\" is also on line ", known->second));
    }
    if (layers.size() == kMaxLayers) {
      return CsvReader::ErrorAt(start, absl::StrCat("more than ", kMaxLayers, " layers"));
    }
    const int64_t input_bytes = layers.empty() ? 0 : layers.back().memory.output_bytes;
    layers.push_back(FromImported(imported));
    layers.back().memory.input_bytes = input_bytes;
  }
  if (layers.empty()) return absl::InvalidArgumentError("there is no layer below the header");
  RETURN_IF_ERROR(CheckProfile(profile));
  return profile;
}

absl::StatusOr<Profile> ReadCsvProfile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxCsvBytes));
  absl::StatusOr<Profile> profile =
      ParseCsvProfile(text, std::filesystem::path(base::InputName(path)).stem().string());
  if (!profile.ok()) return base::InFile(profile.status(), path);
  return profile;
}

}  // namespace stagecoach::partition
