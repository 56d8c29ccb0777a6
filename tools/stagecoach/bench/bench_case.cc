#include "tools/stagecoach/bench/bench_case.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "partition/plan/plan_evaluation.h"
#include "tools/stagecoach/values/flag_values.h"

namespace stagecoach::tools {
namespace {

bool AreAlike(absl::Span<const BenchCase> cases, const BenchProperty& property) {
  return std::all_of(cases.begin(), cases.end(), [&](const BenchCase& what) {
    return property.phrase(what) == property.phrase(cases.front());
  });
}

BenchProperty TextOf(const char* name, const std::string BenchCase::*member) {
  const auto of = [member](const BenchCase& what) { return what.*member; };
  return {.name = name, .is_text = true, .of = of, .phrase = of};
}

// Returns the property written "2 devices" for the noun "device".
BenchProperty CountOf(const char* noun, int BenchCase::*member) {
  return {.name = absl::StrCat(noun, "s"),
          .of = [member](const BenchCase& what) { return absl::StrCat(what.*member); },
          .phrase = [member, noun](
                        const BenchCase& what) { return partition::Counted(what.*member, noun); }};
}

bool IsAlwaysShown(const BenchProperty& property) {
  return property.name == "schedule" || property.name == "devices" ||
         property.name == "micro-batches";
}

std::vector<BenchProperty> AllProperties() {
  // A table has no room for the folder of a model's file.
  BenchProperty model = TextOf("model", &BenchCase::model);
  model.of = [](const BenchCase& what) {
    return std::filesystem::path(what.model).filename().string();
  };
  BenchProperty micro_batches = CountOf("micro-batch", &BenchCase::micro_batches);
  micro_batches.name = "micro-batches";
  micro_batches.phrase = [](const BenchCase& what) {
    return absl::StrCat(what.micro_batches,
                        what.micro_batches == 1 ? " micro-batch" : " micro-batches");
  };
  BenchProperty batch = {
      .name = "batch",
      .of = [](const BenchCase& what) { return absl::StrCat(what.batch); },
      .phrase = [](const BenchCase& what) { return absl::StrCat("batch ", what.batch); }};
  BenchProperty threads = CountOf("thread", &BenchCase::threads);
  threads.of = [](const BenchCase& what) {
    return what.threads > 0 ? absl::StrCat(what.threads) : "cluster's";
  };
  threads.phrase = [](const BenchCase& what) {
    return what.threads > 0 ? partition::Counted(what.threads, "thread") : "threads of the cluster";
  };
  return {std::move(model),
          TextOf("precision", &BenchCase::precision),
          TextOf("schedule", &BenchCase::schedule),
          CountOf("device", &BenchCase::devices),
          CountOf("replica", &BenchCase::replicas),
          std::move(micro_batches),
          std::move(batch),
          std::move(threads)};
}

}  // namespace

std::vector<BenchProperty> PropertiesOf(absl::Span<const BenchCase> cases) {
  std::vector<BenchProperty> properties = AllProperties();
  std::erase_if(properties, [&](const BenchProperty& property) {
    return !IsAlwaysShown(property) && AreAlike(cases, property);
  });
  return properties;
}

std::string Describe(const BenchCase& what, absl::Span<const BenchProperty> properties) {
  return absl::StrJoin(properties, ", ", [&](std::string* text, const BenchProperty& property) {
    absl::StrAppend(text, property.phrase(what));
  });
}

std::string ToString(const BenchCase& what) { return Describe(what, AllProperties()); }

std::string CommonOf(absl::Span<const BenchCase> cases) {
  if (cases.empty()) return "";
  std::vector<BenchProperty> common = AllProperties();
  std::erase_if(common, [&](const BenchProperty& property) {
    return IsAlwaysShown(property) || !AreAlike(cases, property);
  });
  return Describe(cases.front(), common);
}

bool AreSameWork(const BenchCase& a, const BenchCase& b, BenchScaling scaling) {
  if (a.model != b.model || a.precision != b.precision || a.threads != b.threads) return false;
  if (scaling == BenchScaling::kStrong) {
    return a.batch == b.batch && a.micro_batches == b.micro_batches;
  }
  const int64_t of_a = a.all_devices(), of_b = b.all_devices();
  return a.batch * of_b == b.batch * of_a && a.micro_batches * of_b == b.micro_batches * of_a;
}

absl::StatusOr<std::vector<BenchCase>> CasesOf(const BenchGrid& grid) {
  const int fewest = *std::min_element(grid.devices.begin(), grid.devices.end()) *
                     *std::min_element(grid.replicas.begin(), grid.replicas.end());
  std::vector<BenchCase> cases;
  absl::Status status;
  const auto grown = [&](const char* flag, int64_t count, int devices, int64_t most) -> int64_t {
    const bool is_whole = count * devices % fewest == 0;
    if (is_whole && count * devices / fewest <= most) return count * devices / fewest;
    status.Update(base::UsageError(absl::StrCat(
        flag, " is ", count, " for ", partition::Counted(fewest, "device"),
        is_whole ? absl::StrCat(", so more than ", most) : std::string(", so no whole number"),
        " for ", devices)));
    return count;
  };
  const auto add = [&](BenchCase one) {
    one.threads = grid.threads;
    if (const auto file = grid.files.find(one.schedule); file != grid.files.end()) {
      one.devices = file->second.devices;
      one.micro_batches = file->second.micro_batches * one.replicas;
    } else if (grid.scaling == BenchScaling::kWeak) {
      one.batch = grown("--global-batch-size", one.batch, one.all_devices(), kMaxBatch);
      one.micro_batches =
          static_cast<int>(grown("--micro-batches", one.micro_batches, one.all_devices(), kMaxInt));
    }
    if (one.all_devices() == 1) one.schedule = grid.schedules.front();
    if (std::find(cases.begin(), cases.end(), one) == cases.end()) cases.push_back(std::move(one));
  };
  for (const std::string& model : grid.models) {
    for (const std::string& precision : grid.precisions) {
      for (const int devices : grid.devices) {
        for (const int replicas : grid.replicas) {
          for (const std::string& schedule : grid.schedules) {
            for (const int micro_batches : grid.micro_batches) {
              for (const int64_t batch : grid.batches) {
                add({.model = model,
                     .precision = precision,
                     .devices = devices,
                     .replicas = replicas,
                     .schedule = schedule,
                     .micro_batches = micro_batches,
                     .batch = batch});
              }
            }
          }
        }
      }
    }
  }
  RETURN_IF_ERROR(status);
  return cases;
}

}  // namespace stagecoach::tools
