#include "tools/stagecoach/flags/run_flags.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/terminal/terminal_notices.h"

namespace stagecoach::tools {
namespace {

// The shape of the default network is none of another model.
void RefuseShapesOfOtherModels(CLI::App& app, const engine::RunConfig& options) {
  app.parse_complete_callback([&app, &options] {
    for (const char* name : {"--layers", "--width"}) {
      const CLI::Option* const shape = app.get_option(name);
      if (shape->count() == 0) continue;
      if (!options.model_file.empty()) {
        throw CLI::ExcludesError(name, "--model " + options.model_file);
      }
      if (!options.initial_parameters.empty()) throw CLI::ExcludesError(name, "--init");
    }
  });
}

CLI::Option* AddOne(CLI::App& app, engine::RunConfig& options, OutputOptions* output,
                    const RunFlag& flag, const std::string& help) {
  const auto store = [&flag, &options, output](const std::string& text) {
    const absl::Status status =
        flag.set_output != nullptr ? flag.set_output(text, *output) : flag.set(text, options);
    if (!status.ok()) throw CLI::ValidationError(flag.name, std::string(status.message()));
  };
  // The parser would list what a flag needs and excludes where the placeholder is.
  if (flag.is_switch()) {
    return app
        .add_flag_callback(
            flag.name, [store] { store(""); }, help)
        ->option_text(" ");
  }
  const std::string& alias = flag.rules.alias;
  return app
      .add_option_function<std::string>(alias.empty() ? flag.name : flag.name + "," + alias, store,
                                        help)
      ->option_text(flag.placeholder);
}

void Relate(CLI::App& app, const FlagRules& rules, CLI::Option& option) {
  if (!rules.needs.empty()) option.needs(app.get_option(rules.needs));
  for (const std::string& other : rules.excludes) option.excludes(app.get_option(other));
}

void AddWithin(CLI::App& app, engine::RunConfig& options, FlagScope widest,
               OutputOptions* output = nullptr) {
  std::vector<FlagUse> uses;
  for (const RunFlag& flag : RunFlags()) {
    if (flag.set_output != nullptr && output == nullptr) continue;
    if (flag.scope <= widest) uses.push_back({flag.name.c_str()});
  }
  AddRunFlags(app, options, uses, output);
}

}  // namespace

void AddRunFlags(CLI::App& app, engine::RunConfig& options, absl::Span<const FlagUse> uses,
                 OutputOptions* output) {
  options.notices = TerminalNotices();
  options.wants_stop = StopSignal;
  options.wants_save = SaveRequested;
  options.program = "stagecoach " STAGECOACH_VERSION;
  for (const FlagUse& use : uses) {
    const RunFlag* const flag = FindRunFlag(use.name);
    STAGECOACH_CHECK(flag != nullptr, absl::StrCat("no flag is called ", use.name));
    STAGECOACH_CHECK(flag->set_output == nullptr || output != nullptr,
                     absl::StrCat(use.name, " has nothing to fill"));
    CLI::Option* const option =
        AddOne(app, options, output, *flag, use.help.empty() ? flag->help : use.help);
    option->group(use.group.empty() ? flag->group : use.group);
    if (flag->rules.is_output) option->type_name(kOutputFile);
    Relate(app, flag->rules, *option);
    if (flag->name == "--width") RefuseShapesOfOtherModels(app, options);
  }
}

void AddModelFlags(CLI::App& app, engine::RunConfig& options) {
  AddWithin(app, options, FlagScope::kModel);
}
void AddPlanFlags(CLI::App& app, engine::RunConfig& options) {
  AddWithin(app, options, FlagScope::kPlan);
}
void AddTrainFlags(CLI::App& app, engine::RunConfig& options, OutputOptions* output) {
  AddWithin(app, options, FlagScope::kTraining, output);
}

}  // namespace stagecoach::tools
