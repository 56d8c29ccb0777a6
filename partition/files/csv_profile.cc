#include "partition/files/csv_profile.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/line.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "partition/files/imported_layer.h"
#include "schedule/memory.h"

namespace stagecoach::partition {
namespace {

constexpr int64_t kMaxCsvBytes = int64_t{64} << 20;

constexpr size_t kMaxFields = 64;

enum Column : uint8_t { kName, kForward, kBackward, kOutput, kParameters };
constexpr std::array<absl::string_view, 5> kColumns = {"layer", "forward_ms", "backward_ms",
                                                       "output_bytes", "parameter_bytes"};

struct Row {
  int line = 0;  // where it starts
  std::vector<std::string> fields;
};

// Takes one row after another off a text.
class RowReader {
 public:
  explicit RowReader(absl::string_view text) : rest_(text) {
    absl::ConsumePrefix(&rest_, "\xEF\xBB\xBF");
  }

  // The next row that is not empty; nullopt at the end.
  absl::StatusOr<std::optional<Row>> Next() {
    while (!rest_.empty()) {
      Row row = {.line = line_};
      bool at_end = false;
      while (!at_end) {
        if (row.fields.size() == kMaxFields) {
          return ErrorAt(line_, absl::StrCat("more than ", kMaxFields, " fields"));
        }
        ASSIGN_OR_RETURN(row.fields.emplace_back(), TakeField());
        at_end = !absl::ConsumePrefix(&rest_, ",");
      }
      absl::ConsumePrefix(&rest_, "\r");
      if (!rest_.empty() && !absl::ConsumePrefix(&rest_, "\n")) {
        return ErrorAt(line_, absl::StrCat("column ", row.fields.size(),
                                           ": expected a comma or the end of the line after a "
                                           "quoted field; double a quote that belongs to it"));
      }
      ++line_;
      if (row.fields.size() > 1 || !row.fields.front().empty()) return row;
    }
    return std::nullopt;
  }

 private:
  absl::StatusOr<std::string> TakeField() {
    if (!absl::ConsumePrefix(&rest_, "\"")) {
      const size_t length = std::min(rest_.find_first_of(",\n"), rest_.size());
      const absl::string_view field = rest_.substr(0, length);
      rest_.remove_prefix(length);
      return std::string(absl::StripAsciiWhitespace(field));
    }
    const int start = line_;
    std::string field;
    while (true) {
      const size_t quote = rest_.find('"');
      if (quote == absl::string_view::npos) return ErrorAt(start, "a quote is never closed");
      const absl::string_view part = rest_.substr(0, quote);
      line_ += static_cast<int>(std::count(part.begin(), part.end(), '\n'));
      absl::StrAppend(&field, part);
      rest_.remove_prefix(quote + 1);
      if (!absl::ConsumePrefix(&rest_, "\"")) return field;
      field += '"';
    }
  }

  absl::string_view rest_;
  int line_ = 1;
};

// Which column each field of a row is of.
absl::StatusOr<std::vector<Column>> ParseHeader(const Row& row) {
  std::vector<Column> columns;
  for (size_t i = 0; i < row.fields.size(); ++i) {
    const std::string& name = row.fields[i];
    const std::string place = absl::StrCat("column ", i + 1, ": \"", absl::CHexEscape(name), "\" ");
    const auto* const known = std::find(kColumns.begin(), kColumns.end(), name);
    if (known == kColumns.end()) {
      const std::string nearest =
          base::Nearest(name, std::vector<std::string>(kColumns.begin(), kColumns.end()));
      const std::string hint = nearest.empty()
                                   ? absl::StrCat("the columns are: ", absl::StrJoin(kColumns, ","))
                                   : absl::StrCat("did you mean \"", nearest, "\"?");
      return ErrorAt(row.line, absl::StrCat(place, "is not known; ", hint));
    }
    const auto column = static_cast<Column>(known - kColumns.begin());
    if (std::find(columns.begin(), columns.end(), column) != columns.end()) {
      return ErrorAt(row.line, absl::StrCat(place, "appears twice"));
    }
    columns.push_back(column);
  }
  for (size_t i = 0; i < kColumns.size(); ++i) {
    if (std::find(columns.begin(), columns.end(), i) == columns.end()) {
      return ErrorAt(row.line, absl::StrCat("the column \"", kColumns[i],
                                            "\" is missing; the first line must name the columns: ",
                                            absl::StrJoin(kColumns, ",")));
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
  if (row.fields.size() != columns.size()) {
    return ErrorAt(row.line, absl::StrCat("has ", row.fields.size(), " fields, expected ",
                                          columns.size(), " as in the header"));
  }
  ImportedLayer layer;
  for (size_t i = 0; i < columns.size(); ++i) {
    const absl::Status field = ParseField(row.fields[i], columns[i], layer);
    if (!field.ok()) {
      return ErrorAt(row.line, absl::StrCat("column ", i + 1, " (", kColumns[columns[i]],
                                            "): ", field.message()));
    }
  }
  layer.optimizer_bytes = std::min(2 * layer.parameter_bytes, schedule::kMaxSizeBytes);
  return layer;
}

}  // namespace

absl::StatusOr<Profile> ParseCsvProfile(absl::string_view text, absl::string_view model) {
  RowReader reader(text);
  ASSIGN_OR_RETURN(std::optional<Row> row, reader.Next());
  if (!row.has_value()) row = Row{.line = 1};
  ASSIGN_OR_RETURN(const std::vector<Column> columns, ParseHeader(*row));
  Profile profile = {.model = std::string(model), .sizes = {SizedLayers()}};
  std::vector<LayerCost>& layers = profile.sizes.front().layers;
  absl::flat_hash_map<std::string, int> line_of_name;
  while (true) {
    ASSIGN_OR_RETURN(row, reader.Next());
    if (!row.has_value()) break;
    ASSIGN_OR_RETURN(const ImportedLayer imported, ParseRow(*row, columns));
    const auto [known, inserted] = line_of_name.emplace(imported.name, row->line);
    if (!inserted) {
      return ErrorAt(row->line, absl::StrCat("layer: \"", absl::CHexEscape(imported.name),
                                             "\" is also on line ", known->second));
    }
    if (layers.size() == kMaxLayers) {
      return ErrorAt(row->line, absl::StrCat("more than ", kMaxLayers, " layers"));
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
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, kMaxCsvBytes));
  absl::StatusOr<Profile> profile =
      ParseCsvProfile(text, std::filesystem::path(path).stem().string());
  if (!profile.ok()) return base::InFile(profile.status(), path);
  return profile;
}

}  // namespace stagecoach::partition
