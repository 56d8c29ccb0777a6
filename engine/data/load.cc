#include "engine/data/load.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/data/csv.h"
#include "engine/data/idx.h"
#include "engine/data/synthetic.h"

namespace stagecoach::engine {
namespace {

absl::StatusOr<TrainTest> LoadAll(const DataSource& source) {
  absl::string_view rest = source.spec;
  if (absl::ConsumePrefix(&rest, "synthetic:")) {
    ASSIGN_OR_RETURN(const SyntheticSpec spec, ParseSyntheticSpec(rest));
    return MakeSynthetic(spec, source.seed);
  }
  if (absl::EndsWith(source.spec, ".csv")) {
    CsvOptions options;
    options.label_column = source.label_column;
    options.seed = source.seed;
    return LoadCsv(source.spec, options);
  }
  if (source.spec.empty()) {
    return absl::InvalidArgumentError(
        "no data given, expected a directory of IDX files, a .csv file or "
        "\"synthetic:ROWSxFEATURESxCLASSES\"");
  }
  return LoadIdxDirectory(source.spec);
}

// To the caller of LoadData a file above its reader's limit is one more kind of bad content.
absl::Status AsContentError(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::InvalidArgumentError(status.message());
}

}  // namespace

absl::StatusOr<TrainTest> LoadData(const DataSource& source) {
  absl::StatusOr<TrainTest> loaded = LoadAll(source);
  RETURN_IF_ERROR(AsContentError(loaded.status()));
  TrainTest data = *std::move(loaded);
  if (source.train_rows == 0) return data;
  auto subset = Subset(data.train, source.train_rows);
  RETURN_IF_ERROR(base::Annotate(subset.status(), absl::StrCat(source.spec, ": training rows")));
  data.train = *std::move(subset);
  return data;
}

}  // namespace stagecoach::engine
