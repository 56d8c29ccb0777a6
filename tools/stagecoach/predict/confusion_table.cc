#include "tools/stagecoach/predict/confusion_table.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text/text_table.h"
#include "base/text/units.h"

namespace stagecoach::tools {
namespace {

using Align = base::TextTable::Align;
using Column = base::TextTable::Column;

std::string Accuracy(const engine::Confusion::OfClass& counts) {
  if (counts.rows == 0) return "";
  return base::FormatPercent(static_cast<double>(counts.correct) /
                             static_cast<double>(counts.rows));
}

std::vector<std::string> CellsOf(const engine::Confusion& confusion,
                                 const engine::DataEncoding& encoding, int32_t label) {
  const engine::Confusion::OfClass& counts = confusion.of_class()[static_cast<size_t>(label)];
  return {encoding.NameOf(label), base::FormatCount(counts.rows), Accuracy(counts)};
}

std::vector<Column> FirstColumns() {
  return {{"class"}, {"rows", Align::kRight}, {"accuracy", Align::kRight}};
}

int64_t CountOf(const engine::Confusion& confusion, int32_t label, int32_t predicted) {
  const auto found = confusion.counts().find({label, predicted});
  return found == confusion.counts().end() ? 0 : found->second;
}

std::string WholeTable(const engine::Confusion& confusion, const engine::DataEncoding& encoding,
                       const std::vector<int32_t>& classes) {
  std::vector<Column> columns = FirstColumns();
  for (const int32_t predicted : classes) {
    columns.push_back({absl::StrCat("as ", encoding.NameOf(predicted)), Align::kRight});
  }
  base::TextTable table(columns);
  for (const int32_t label : classes) {
    std::vector<std::string> cells = CellsOf(confusion, encoding, label);
    for (const int32_t predicted : classes) {
      const int64_t count = CountOf(confusion, label, predicted);
      cells.push_back(count == 0 ? "." : base::FormatCount(count));
    }
    table.AddRow(std::move(cells));
  }
  return table.ToString();
}

std::string ShortTable(const engine::Confusion& confusion, const engine::DataEncoding& encoding,
                       const std::vector<int32_t>& classes) {
  std::vector<Column> columns = FirstColumns();
  columns.push_back({"most often mistaken for"});
  // The first of the largest, by label.
  std::map<int32_t, std::pair<int32_t, int64_t>> mistakes;
  for (const auto& [pair, count] : confusion.counts()) {
    const auto [label, predicted] = pair;
    if (label != predicted && count > mistakes[label].second) mistakes[label] = {predicted, count};
  }
  base::TextTable table(columns);
  for (const int32_t label : classes) {
    std::vector<std::string> cells = CellsOf(confusion, encoding, label);
    const auto [predicted, count] = mistakes[label];
    cells.push_back(
        count == 0 ? ""
                   : absl::StrCat(encoding.NameOf(predicted), " (", base::FormatCount(count), ")"));
    table.AddRow(std::move(cells));
  }
  return table.ToString();
}

}  // namespace

std::string ConfusionTable(const engine::Confusion& confusion, const engine::DataEncoding& encoding,
                           int columns) {
  constexpr size_t kMostWhole = 40;  // classes that could fit
  std::vector<int32_t> classes;
  for (size_t i = 0; i < confusion.of_class().size(); ++i) {
    const engine::Confusion::OfClass& counts = confusion.of_class()[i];
    if (counts.rows + counts.predicted > 0) classes.push_back(static_cast<int32_t>(i));
  }
  if (classes.size() <= kMostWhole) {
    std::string table = WholeTable(confusion, encoding, classes);
    const size_t width = table.find('\n', table.find('\n') + 1) - table.find('\n') - 1;  // its rule
    if (width <= static_cast<size_t>(columns)) return table;
  }
  return ShortTable(confusion, encoding, classes);
}

}  // namespace stagecoach::tools
