#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "engine/session/run_config.h"
#include "engine/train/measured_profile.h"
#include "partition/io/profile_file.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/other_load.h"
#include "tools/stagecoach/terminal/slow_notice.h"
#include "tools/stagecoach/terminal/terminal.h"
#include "tools/stagecoach/values/flag_values.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 20;
constexpr size_t kMaxSizes = 64;
constexpr int kMaxProfileRepeats = 1000;
constexpr int kMaxDevices = 1024;

struct ProfileFlags {
  engine::RunConfig run;
  std::vector<int64_t> rows = {32};  // of a micro-batch; ascending
  int repeats = engine::MeasureOptions{}.repeats;
  int devices = engine::kDefaultStages;
  bool analytic = false;
  std::string output;  // "": none
  bool json = false;
};

// Parses "16,32,64", in any order.
absl::StatusOr<std::vector<int64_t>> ParseSizes(const std::string& text) {
  ASSIGN_OR_RETURN(std::vector<int64_t> sizes, ParseList(text, CountIn(1, kMaxRows)));
  std::sort(sizes.begin(), sizes.end());
  const auto twice = std::adjacent_find(sizes.begin(), sizes.end());
  if (twice != sizes.end())
    return absl::InvalidArgumentError(absl::StrCat(*twice, " appears twice"));
  if (sizes.size() > kMaxSizes) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected at most ", kMaxSizes, " sizes, not ", sizes.size()));
  }
  return sizes;
}

std::string ModelName(const engine::RunConfig& options) {
  if (NameOfModel(options) != engine::kDefaultModel) return NameOfModel(options);
  return "default network";
}

absl::StatusOr<partition::Profile> MakeProfile(const ProfileFlags& flags,
                                               const engine::DeviceChoice& choice,
                                               const engine::PlannedModel& planned) {
  ASSIGN_OR_RETURN(const engine::DeviceSpec device, Resolve(choice, 1, flags.run.notices));
  const engine::ProfileOptions options = {.optimizer = planned.optimizer, .device = device};
  const std::string name = ModelName(flags.run);
  ASSIGN_OR_RETURN(partition::Profile analyzed,
                   AnalyzeProfile(planned.model, name, flags.rows, options));
  if (flags.analytic) return analyzed;
  RETURN_IF_ERROR(CheckCanMeasure(analyzed.sizes.back().layers, device));
  std::optional<SlowNotice> notice(engine::DescribeMeasuring(flags.rows));
  ASSIGN_OR_RETURN(partition::Profile measured,
                   MeasureProfile(planned.model, name, flags.rows, options,
                                  {.repeats = flags.repeats,
                                   .devices = engine::DevicesAtOnce(flags.devices, device)}));
  notice.reset();
  ASSIGN_OR_RETURN(measured.overheads.host_link, engine::MeasureHostLink(device));
  return measured;
}

std::string LayerTable(const std::vector<partition::LayerCost>& layers, bool measured) {
  using Align = base::TextTable::Align;
  base::TextTable table({{"layer", Align::kLeft},
                         {"parameters", Align::kRight},
                         {"F ms", Align::kRight},
                         {"B ms", Align::kRight},
                         {"W ms", Align::kRight},
                         {"step ms", Align::kRight},
                         {"spread", Align::kRight},
                         {"stash", Align::kRight},
                         {"output", Align::kRight}});
  const auto ms = [](double ns) { return absl::StrFormat("%.3f", ns / 1e6); };
  for (const partition::LayerCost& layer : layers) {
    table.AddRow({layer.name, base::FormatCount(layer.parameters), ms(layer.forward_ns),
                  ms(layer.backward_input_ns), ms(layer.backward_weight_ns), ms(layer.step_ns),
                  measured ? base::FormatPercent(layer.spread) : "-",
                  base::FormatBytes(layer.memory.stash_bytes + layer.memory.weight_stash_bytes),
                  base::FormatBytes(layer.memory.output_bytes)});
  }
  return table.ToString(TerminalColumns());
}

absl::StatusOr<int> PrintProfile(const ProfileFlags& flags) {
  if (!flags.output.empty()) {
    RETURN_IF_ERROR(base::CheckWritable(flags.output));
  }
  ASSIGN_OR_RETURN(const engine::PlannedModel planned, PrepareModel(flags.run));
  const OtherLoad load;
  ASSIGN_OR_RETURN(
      const partition::Profile profile,
      WithFallBack(flags.run.device, flags.run.notices, [&](const engine::DeviceChoice& device) {
        return MakeProfile(flags, device, planned);
      }));
  const std::string others = DescribeOtherLoad(load.Share());
  if (!flags.output.empty()) {
    RETURN_IF_ERROR(partition::WriteProfileFile(flags.output, profile));
  }
  if (flags.json) {
    PrintJsonLine(nlohmann::ordered_json::parse(partition::ToProfileJson(profile)));
    return kExitOk;
  }
  const char* separator = "";
  for (const partition::SizedLayers& size : profile.sizes) {
    const int64_t rows = size.micro_batch_rows;
    absl::PrintF("%smicro-batches of %s %s, %s\n\n%s", std::exchange(separator, "\n"),
                 base::FormatCount(rows), rows == 1 ? "row" : "rows",
                 flags.analytic ? "times estimated"
                                : absl::StrCat("medians of ", flags.repeats, " steps",
                                               others.empty() ? "" : "; ", others),
                 LayerTable(size.layers, !flags.analytic));
  }
  return kExitOk;
}

}  // namespace

Command AddProfileCommand(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("profile", "Measure the time and memory of each layer of a model");
  const auto flags = std::make_shared<ProfileFlags>();
  AddModelFlags(*command, flags->run);
  command->get_option("--device")->description("cpu, cuda, or auto: cuda if there is a GPU [cpu]");
  const std::string group = "Profile";
  AddFlag(*command, "--rows", "N,N,...", flags->rows, "Sizes of a micro-batch to profile [32]",
          ParseSizes)
      ->group(group);
  CLI::Option* analytic =
      command
          ->add_flag("--analytic", flags->analytic, "Estimate the times rather than measure them")
          ->option_text(" ")  // instead of a list of what it excludes
          ->group(group);
  AddFlag(*command, "--repeats", "N", flags->repeats,
          absl::StrCat("Steps to take the median of [", flags->repeats, "]"),
          [](const std::string& text) { return ParseCount(text, 1, kMaxProfileRepeats); })
      ->excludes(analytic)
      ->group(group);
  AddFlag(*command, "--devices", "N", flags->devices,
          absl::StrCat("Devices that compute during the measurement, at most one per core [",
                       flags->devices, "]"),
          [](const std::string& text) { return ParseCount(text, 1, kMaxDevices); })
      ->excludes(analytic)
      ->group(group);
  AddOutput(*command, "--output", "FILE.json", flags->output,
            "Write the profile, for plan --profile",
            [](const std::string& path) -> absl::StatusOr<std::string> {
              if (absl::EndsWithIgnoreCase(path, ".json") || base::IsStream(path)) {
                return ParseOutput(path);
              }
              return absl::InvalidArgumentError("expected a file that ends in .json");
            })
      ->group(group);
  command->add_flag("--json", flags->json, "Print the profile as JSON, on one line")->group(group);
  return {command, [flags] { return PrintProfile(*flags); }};
}

}  // namespace stagecoach::tools
