#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/session/run_config.h"
#include "schedule/io/asked_schedule.h"
#include "schedule/io/schedule_file.h"
#include "tools/stagecoach/bench/bench_case.h"
#include "tools/stagecoach/bench/bench_comparison.h"
#include "tools/stagecoach/bench/bench_file.h"
#include "tools/stagecoach/bench/bench_progress.h"
#include "tools/stagecoach/bench/bench_report.h"
#include "tools/stagecoach/bench/bench_results.h"
#include "tools/stagecoach/bench/bench_runner.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/terminal/terminal.h"
#include "tools/stagecoach/values/flag_values.h"
#include "tools/stagecoach/values/flags.h"
#include "tools/stagecoach/values/schedule_option.h"

namespace stagecoach::tools {
namespace {

// Features and classes of Fashion-MNIST, for which the default network is sized.
constexpr char kDefaultShapes[] = "synthetic:10x784x10";
constexpr char kGroup[] = "Bench";  // of the bench's own flags
constexpr int64_t kDefaultBatch = 128;
constexpr int kMaxRepeats = 10'000;
constexpr int kMaxVisits = 1000;

struct BenchCommandOptions {
  BenchOptions bench;
  BenchGrid grid = {.models = {engine::kDefaultModel},
                    .devices = {engine::kDefaultStages},
                    .schedules = {engine::kUsualSchedule},
                    .micro_batches = {engine::kDefaultMicroBatches},
                    .batches = {kDefaultBatch}};
  std::optional<BenchScaling> scaling;
  bool no_prediction = false;
  int visits = 1;
  std::string output = "table";
  std::string results;  // file; "": none

  CLI::App* compare = nullptr;
  std::string before, after;
  bool json = false;  // of compare
};

// Parses "default,gpt2:blocks=2,width=128": two names, the second of which has two options.
absl::StatusOr<std::vector<std::string>> ParseNames(const std::string& text) {
  std::vector<std::string> names;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const bool is_option = absl::StrContains(part, '=') && !absl::StrContains(part, ':') &&
                           !names.empty() && absl::StrContains(names.back(), ':');
    if (is_option) {
      absl::StrAppend(&names.back(), ",", part);
    } else {
      names.emplace_back(part);
    }
  }
  if (std::find(names.begin(), names.end(), "") == names.end()) return names;
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" has an empty name"));
}

auto Counts(int64_t max) {
  return
      [max](const std::string& text) { return ParseList(text, IntIn(1, static_cast<int>(max))); };
}

absl::StatusOr<std::optional<BenchScaling>> ParseScaling(const std::string& name) {
  RETURN_IF_ERROR(ParseChoice(name, {"strong", "weak"}).status());
  return name == "weak" ? BenchScaling::kWeak : BenchScaling::kStrong;
}

// Returns the flags that neither a case nor the bench itself has.
std::string OtherFlags(const CLI::App& app) {
  static constexpr absl::string_view kOfCases[] = {
      "--model",    "--precision",     "--devices",           "--replicas",
      "--schedule", "--micro-batches", "--global-batch-size", "--threads-per-device"};
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    const bool is_other =
        option->count() > 0 && (option->get_group() != kGroup || name == "--warm-up") &&
        std::find(std::begin(kOfCases), std::end(kOfCases), name) == std::end(kOfCases);
    if (!is_other) continue;
    const bool has_value = option->get_expected_min() > 0;
    flags.push_back(has_value ? absl::StrCat(name, " ", option->results().back()) : name);
  }
  return absl::StrJoin(flags, " ");
}

// Returns how many visits a row has had.
int VisitsOf(const BenchRow& row, int repeats) {
  return static_cast<int>(row.steps_ms.size()) / repeats;
}

void Print(const BenchCommandOptions& options, const BenchResults& results) {
  if (options.output == "json") {
    PrintJsonLine(ToJson(results));
    return;
  }
  absl::PrintF("%s", options.output == "csv"    ? ToCsv(results)
                     : options.output == "html" ? ToHtml(results, options.grid.scaling)
                                                : ToTable(results, options.scaling));
}

// Adds schedule files, which have devices and micro-batches of their own. A list of other values is
// refused.
absl::Status AddScheduleFiles(const CLI::App& flags, BenchGrid& grid) {
  const auto asked = [&](const char* flag, const std::vector<int>& list) {
    return flags.get_option(flag)->count() > 0 ? list : std::vector<int>();
  };
  const std::vector<int> devices = asked("--devices", grid.devices);
  const std::vector<int> micro_batches = asked("--micro-batches", grid.micro_batches);
  for (const std::string& name : grid.schedules) {
    if (!schedule::IsScheduleFile(name)) continue;
    ASSIGN_OR_RETURN(const schedule::Schedule schedule, schedule::ReadAskedSchedule(name, {}));
    const BenchGrid::Shape shape = {schedule.num_ranks(), schedule.num_micro_batches};
    schedule::AskedShape wrong;
    const auto lacks = [](const std::vector<int>& list, int count) {
      return !list.empty() && std::find(list.begin(), list.end(), count) == list.end();
    };
    if (lacks(devices, shape.devices)) wrong.stages = devices.front();
    if (lacks(micro_batches, shape.micro_batches)) wrong.micro_batches = micro_batches.front();
    if (wrong.stages.has_value() || wrong.micro_batches.has_value()) {
      return schedule::ReadAskedSchedule(name, wrong).status();
    }
    grid.files[name] = shape;
  }
  return absl::OkStatus();
}

// All devices of a cluster, if none were asked for, and the threads that it says.
absl::Status TakeDevicesOfCluster(const CLI::App& flags, BenchCommandOptions& options) {
  ASSIGN_OR_RETURN(const std::optional<partition::Cluster> cluster, ReadCluster(options.bench.run));
  if (!cluster.has_value()) return absl::OkStatus();
  if (engine::NamesThreads(*cluster)) options.grid.threads = 0;
  if (flags.get_option("--devices")->count() > 0) return absl::OkStatus();
  const int replicas =
      *std::max_element(options.grid.replicas.begin(), options.grid.replicas.end());
  options.grid.devices = {std::max(1, cluster->size() / replicas)};
  return absl::OkStatus();
}

absl::StatusOr<int> Measure(const CLI::App& flags, BenchCommandOptions& options) {
  options.grid.scaling = options.scaling.value_or(BenchScaling::kStrong);
  options.bench.predicts = !options.no_prediction;
  options.grid.threads = options.bench.run.device.threads;
  options.bench.run.default_data = kDefaultShapes;
  RETURN_IF_ERROR(TakeDevicesOfCluster(flags, options));
  RETURN_IF_ERROR(AddScheduleFiles(flags, options.grid));
  ASSIGN_OR_RETURN(const std::vector<BenchCase> cases, CasesOf(options.grid));
  ASSIGN_OR_RETURN(BenchResults results, EmptyResults(options.grid, OtherFlags(flags)));
  ASSIGN_OR_RETURN(results, ResumeResults(options.results, std::move(results)));
  std::vector<BenchRow> rows;  // of these cases: those of the file, and the others
  int done = 0;
  for (const BenchCase& what : cases) {
    // A case that could not be run is tried again.
    const BenchRow* const found = results.Find(what);
    const bool is_kept = found != nullptr && found->error.empty();
    rows.push_back(is_kept ? *found : BenchRow{.what = what});
    done += std::min(options.visits, VisitsOf(rows.back(), options.bench.repeats));
  }
  StopOnSignals();
  BenchProgress progress(done, static_cast<int>(cases.size()) * options.visits);
  options.bench.on_progress = [&](const std::string& doing) { progress.Tell(doing); };
  BenchRunner runner(options.bench);
  std::vector<std::string> notices;
  std::set<const BenchRow*> given_up;
  bool is_stopped = false;
  for (int visit = 0; visit < options.visits && !is_stopped; ++visit) {
    for (BenchRow& row : rows) {
      const int visits = VisitsOf(row, options.bench.repeats);
      if (given_up.count(&row) > 0 || visits > visit) continue;
      progress.Begin(row.what);
      const BenchRow before = row;
      const absl::Status measured = runner.Measure(row);
      is_stopped = absl::IsCancelled(measured);
      if (is_stopped) {
        row = before;
        break;
      }
      RETURN_IF_ERROR(measured);
      const bool has_failed = !row.error.empty();
      if (has_failed) given_up.insert(&row);
      progress.End(has_failed ? options.visits - visit - 1 : 0);
      // Earlier measurements stay.
      if (has_failed && visits > 0) {
        notices.push_back(absl::StrCat(ToString(row.what), ": ", row.error));
        row = before;
      }
      results.Keep(row);
      RETURN_IF_ERROR(SaveResults(options.results, results));
    }
  }
  // The other rows of the file were not requested.
  std::erase_if(rows,
                [](const BenchRow& one) { return one.error.empty() && one.steps_ms.empty(); });
  results.rows = std::move(rows);
  RedrawErrorLine("");
  Print(options, results);
  for (const std::string& notice : notices) PrintNotice(notice);
  if (is_stopped) {
    const bool is_kept = !options.results.empty() && base::Exists(options.results);
    PrintNotice(is_kept ? absl::StrCat("stopped by a signal: the same command continues from ",
                                       options.results)
                        : "stopped by a signal");
    return StatusOfStop();
  }
  const bool any = std::any_of(results.rows.begin(), results.rows.end(),
                               [](const BenchRow& row) { return row.error.empty(); });
  return any ? kExitOk : ExitStatusOf(runner.first_error());
}

absl::StatusOr<int> CompareResults(const CLI::App& flags, const BenchCommandOptions& options) {
  for (const CLI::Option* option : flags.get_options()) {
    if (option->count() == 0) continue;
    return base::UsageError(
        absl::StrCat(option->get_name(), " is not for compare, which measures nothing"));
  }
  ASSIGN_OR_RETURN(const BenchResults before, ReadBenchResults(options.before));
  ASSIGN_OR_RETURN(const BenchResults after, ReadBenchResults(options.after));
  const BenchComparison comparison = CompareBenches(before, after);
  if (comparison.changes.empty()) {
    return base::DataError(absl::StrCat(options.after, " has no row of those in ", options.before));
  }
  if (options.json) {
    PrintJsonLine(ToJson(comparison));
  } else {
    absl::PrintF("%s", ToText(comparison));
  }
  return comparison.is_worse() ? kExitDifferent : kExitOk;
}

// Replaces a flag that takes a value by one that takes a list.
template <typename T, typename Parse>
void ReplaceByList(CLI::App& app, const std::string& name, const std::string& placeholder,
                   std::vector<T>& values, const std::string& description, Parse parse) {
  CLI::Option* const old = app.get_option(name.substr(0, name.find(',')));
  const std::string group = old->get_group();
  app.remove_option(old);
  AddFlag(app, name, placeholder, values, description, parse)->group(group);
}

void AddGridFlags(CLI::App& app, BenchCommandOptions& options) {
  BenchGrid& grid = options.grid;
  ReplaceByList(app, "--model", "NAME|FILE,...", grid.models,
                "default, gpt2-124m, llama, resnet18, ..., or .toml files [default]", ParseNames);
  ReplaceByList(app, "--precision", "NAME,...", grid.precisions,
                "fp32, bf16, or on CUDA devices tf32 [fp32]", [](const std::string& text) {
                  return ParseList(text, Choice({"fp32", "tf32", "bf16"}));
                });
  ReplaceByList(app, "--devices,--stages", "N,...", grid.devices,
                absl::StrCat("Devices to split the model over [", engine::kDefaultStages, "]"),
                Counts(kMaxStages));
  ReplaceByList(app, "--replicas", "N,...", grid.replicas, "Data-parallel copies of the model [1]",
                Counts(kMaxStages));
  ReplaceByList(
      app, "--schedule", "NAME|FILE,...", grid.schedules,
      absl::StrCat("Pipeline schedules (see simulate --help) [", engine::kUsualSchedule, "]"),
      [](const std::string& text) { return ParseList(text, ParseScheduleOption); });
  ReplaceByList(app, "--micro-batches", "N,...", grid.micro_batches,
                absl::StrCat("Micro-batches per step [", engine::kDefaultMicroBatches, "]"),
                Counts(kMaxInt));
  ReplaceByList(app, "--global-batch-size", "N,...", grid.batches,
                absl::StrCat("Samples per optimizer step, over all replicas [", kDefaultBatch, "]"),
                [](const std::string& text) { return ParseList(text, CountIn(1, kMaxBatch)); });
}

void AddBenchFlags(CLI::App& app, BenchCommandOptions& options) {
  const std::string group = kGroup;
  AddFlag(app, "--repeats", "N", options.bench.repeats,
          Describe("Measured steps per visit", absl::StrCat(options.bench.repeats)),
          CountIn(1, kMaxRepeats))
      ->group(group);
  AddFlag(app, "--warm-up", "N", options.bench.warm_up,
          Describe("Unmeasured steps before them", absl::StrCat(options.bench.warm_up)),
          CountIn(0, kMaxRepeats))
      ->group(group);
  AddFlag(app, "--visits", "N", options.visits,
          "Passes over all rows, so that drift affects all alike [1]", CountIn(1, kMaxVisits))
      ->group(group);
  AddFlag(app, "--scaling", "strong|weak", options.scaling,
          "Show the speed-up for the same batch, or for one that grows with devices", ParseScaling)
      ->group(group);
  app.add_flag("--no-prediction", options.no_prediction, "Skip measuring layers to predict steps")
      ->group(group);
  AddFlag(app, "--output", "FORMAT", options.output,
          Describe("Print table, csv, json or html", options.output),
          Choice({"table", "csv", "json", "html"}))
      ->group(group);
  AddOutput(app, "--results", "FILE", options.results,
            "Keep results as JSON; the same command then continues from them", ParseFile)
      ->group(group);
}

}  // namespace

Command AddBenchCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("bench", "Measure the throughput of training");
  const auto options = std::make_shared<BenchCommandOptions>();
  AddPlanFlags(*flags, options->bench.run);
  for (const char* name : {"--seed", "--new-head", "--init", "--on-nonfinite"})
    flags->remove_option(flags->get_option(name));
  AddGridFlags(*flags, *options);
  AddBenchFlags(*flags, *options);
  flags->get_option("--data")->description(
      "Shape of the samples; values are random [synthetic:10x784x10]");
  options->compare = flags->add_subcommand(
      "compare", "Report what got faster or slower beyond noise; status 1 if any got slower");
  options->compare->add_option("before", options->before, "Results of bench, as JSON")->required();
  options->compare->add_option("after", options->after, "The same, later")->required();
  options->compare->add_flag("--json", options->json, "Print one JSON object");
  return {flags, [flags, options]() -> absl::StatusOr<int> {
            return options->compare->parsed() ? CompareResults(*flags, *options)
                                              : Measure(*flags, *options);
          }};
}

}  // namespace stagecoach::tools
