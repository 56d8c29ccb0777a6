#include "tools/stagecoach/bench/bench_comparison.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text/text_table.h"
#include "base/text/units.h"

namespace stagecoach::tools {
namespace {

using nlohmann::ordered_json;

const char* NameOf(BenchVerdict verdict) {
  switch (verdict) {
    case BenchVerdict::kFaster:
      return "faster";
    case BenchVerdict::kSlower:
      return "slower";
    case BenchVerdict::kNoise:
      return "noise";
    case BenchVerdict::kBroken:
      return "broken";
    default:
      return "mended";
  }
}

BenchVerdict Judge(const BenchRow& before, const BenchRow& after) {
  if (!before.error.empty() || !after.error.empty()) {
    return before.error.empty()  ? BenchVerdict::kBroken
           : after.error.empty() ? BenchVerdict::kMended
                                 : BenchVerdict::kNoise;
  }
  const BenchInterval was = MedianInterval(before.steps_ms);
  const BenchInterval is = MedianInterval(after.steps_ms);
  return is.high < was.low   ? BenchVerdict::kFaster
         : is.low > was.high ? BenchVerdict::kSlower
                             : BenchVerdict::kNoise;
}

// Returns the relative change of the time: below 0 is faster.
double ChangeOf(const BenchChange& change) { return change.after_ms / change.before_ms - 1; }

bool HasTimes(const BenchChange& change) { return change.before_ms > 0 && change.after_ms > 0; }

BenchMachine WithoutVersionAndDate(BenchMachine machine) {
  machine.stagecoach.clear();
  machine.date.clear();
  return machine;
}

}  // namespace

bool BenchComparison::is_worse() const {
  return std::any_of(changes.begin(), changes.end(), [](const BenchChange& change) {
    return change.verdict == BenchVerdict::kSlower || change.verdict == BenchVerdict::kBroken;
  });
}

BenchComparison CompareBenches(const BenchResults& before, const BenchResults& after) {
  BenchComparison comparison;
  for (const BenchRow& was : before.rows) {
    const BenchRow* const is = after.Find(was.what);
    if (is == nullptr) {
      comparison.removed.push_back(was.what);
      continue;
    }
    const auto ms = [](const BenchRow& row) { return row.error.empty() ? row.step_ms() : 0; };
    comparison.changes.push_back({was.what, ms(was), ms(*is), Judge(was, *is)});
  }
  for (const BenchRow& is : after.rows) {
    if (before.Find(is.what) == nullptr) comparison.added.push_back(is.what);
  }
  comparison.is_other_machine =
      WithoutVersionAndDate(before.machine) != WithoutVersionAndDate(after.machine);
  comparison.has_other_options = before.options != after.options;
  return comparison;
}

std::string ToText(const BenchComparison& comparison) {
  using Align = base::TextTable::Align;
  std::vector<BenchCase> cases;
  for (const BenchChange& change : comparison.changes) cases.push_back(change.what);
  const std::vector<BenchProperty> names = PropertiesOf(cases);
  std::vector<base::TextTable::Column> columns;
  for (const BenchProperty& name : names) {
    columns.push_back({name.name, name.is_text ? Align::kLeft : Align::kRight});
  }
  for (const char* name : {"before, ms", "after, ms", "change"}) {
    columns.push_back({name, Align::kRight});
  }
  columns.push_back({"", Align::kLeft});
  base::TextTable table(columns);
  const auto ms = [](double value) { return value > 0 ? FormatMilliseconds(value) : "-"; };
  for (const BenchChange& change : comparison.changes) {
    std::vector<std::string> cells;
    for (const BenchProperty& name : names) cells.push_back(name.of(change.what));
    cells.push_back(ms(change.before_ms));
    cells.push_back(ms(change.after_ms));
    cells.push_back(HasTimes(change) ? base::FormatChange(ChangeOf(change)) : "-");
    cells.emplace_back(NameOf(change.verdict));
    table.AddRow(std::move(cells));
  }
  std::string text = absl::StrCat(cases.empty() ? "" : absl::StrCat(CommonOf(cases), "\n\n"),
                                  table.ToString(base::TextTable::kPageColumns));
  for (const BenchCase& what : comparison.removed) {
    absl::StrAppend(&text, "only before: ", ToString(what), "\n");
  }
  for (const BenchCase& what : comparison.added) {
    absl::StrAppend(&text, "only after: ", ToString(what), "\n");
  }
  if (comparison.is_other_machine) {
    absl::StrAppend(&text, "these are of different machines or libraries\n");
  }
  if (comparison.has_other_options) absl::StrAppend(&text, "these have different options\n");
  return text;
}

ordered_json ToJson(const BenchComparison& comparison) {
  ordered_json rows = ordered_json::array(), removed = rows, added = rows;
  for (const BenchChange& change : comparison.changes) {
    ordered_json row = ToJson(change.what);
    if (change.before_ms > 0) row["before_ms"] = change.before_ms;
    if (change.after_ms > 0) row["after_ms"] = change.after_ms;
    if (HasTimes(change)) row["change"] = ChangeOf(change);
    row["verdict"] = NameOf(change.verdict);
    rows.push_back(std::move(row));
  }
  for (const BenchCase& what : comparison.removed) removed.push_back(ToJson(what));
  for (const BenchCase& what : comparison.added) added.push_back(ToJson(what));
  return {{"rows", std::move(rows)},
          {"removed", std::move(removed)},
          {"added", std::move(added)},
          {"other_machine", comparison.is_other_machine},
          {"other_options", comparison.has_other_options}};
}

}  // namespace stagecoach::tools
