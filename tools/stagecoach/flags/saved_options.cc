#include "tools/stagecoach/flags/saved_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/session/saved_run.h"
#include "tools/stagecoach/flags/run_flags.h"

namespace stagecoach::tools {
namespace {

// One of them says how long a run is; at most one, what it is tested with.
constexpr absl::string_view kLengths[] = {"--epochs", "--steps"};
constexpr absl::string_view kTestSets[] = {"--test-data", "--test-fraction"};

template <size_t kN>
bool Contains(const absl::string_view (&names)[kN], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Whether a checkpoint keeps the flag of this name.
bool IsSaved(const std::string& name) {
  const RunFlag* const flag = FindRunFlag(name);
  return flag != nullptr && flag->rules.saving != FlagSaving::kNever;
}

// Whether a flag is given, and with another value than the checkpoint has.
bool HasOther(const std::string& name, const CLI::App& flags, const engine::Manifest& manifest) {
  const CLI::Option* const own = flags.get_option(name);
  return own->count() > 0 &&
         std::any_of(manifest.options.begin(), manifest.options.end(), [&](const auto& saved) {
           return PresentName(saved.name) == name && saved.value != own->results().back();
         });
}

}  // namespace

std::vector<engine::SavedOption> OptionsToSave(const CLI::App& flags,
                                               const engine::RunConfig& options,
                                               const engine::TrainingRun& run) {
  std::vector<engine::SavedOption> saved;
  for (auto& [name, value] : OptionsInEffect(options, run)) {
    const auto& defaults = options.taken_defaults;
    const bool is_default = flags.get_option(name)->count() == 0 ||
                            std::find(defaults.begin(), defaults.end(), name) != defaults.end();
    saved.push_back({name, value, !is_default});
  }
  for (const CLI::Option* option : flags.get_options()) {
    const std::string name = option->get_name();
    const bool is_saved = std::any_of(saved.begin(), saved.end(),
                                      [&](const auto& other) { return other.name == name; });
    if (is_saved || option->count() == 0 || !IsSaved(name)) continue;
    saved.push_back({name, option->results().back(), true});
  }
  return saved;
}

absl::Status TakeSavedOption(CLI::App& flags, const engine::SavedOption& saved) {
  CLI::Option* const option = flags.get_option(PresentName(saved.name));
  try {
    option->add_result(saved.value);
    option->run_callback();
  } catch (const CLI::Error& error) {
    return base::DataError(absl::StrCat("an option of the checkpoint, ", error.what()));
  }
  return absl::OkStatus();
}

absl::Status TakeSavedOptions(CLI::App& flags, const engine::Manifest& manifest,
                              engine::RunConfig& options) {
  const bool has_plan = flags.get_option("--plan")->count() > 0;
  const bool has_model = flags.get_option("--model")->count() > 0;
  const auto has_any = [&flags](const auto& names) {
    return std::any_of(std::begin(names), std::end(names), [&](absl::string_view name) {
      return flags.get_option(std::string(name))->count() > 0;
    });
  };
  const bool has_length = has_any(kLengths);
  const bool has_test_set = has_any(kTestSets);
  const bool has_schedule = flags.get_option("--lr-schedule")->count() > 0;
  for (const engine::SavedOption& saved : manifest.options) {
    const std::string name = PresentName(saved.name);
    CLI::Option* const option = flags.get_option_no_throw(name);
    if (option == nullptr || !IsSaved(name)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the checkpoint was saved with the option ", saved.name,
                       ", which is not known here (it was saved by ", manifest.program, ")"));
    }
    const FlagRules& rules = FindRunFlag(name)->rules;
    if (option->count() > 0 || (has_plan && rules.is_of_plan)) continue;
    if (rules.saving == FlagSaving::kOnlyGiven && !saved.is_given) continue;
    const bool belongs_to_other =
        std::any_of(rules.belongs_to.begin(), rules.belongs_to.end(),
                    [&](const std::string& other) { return HasOther(other, flags, manifest); });
    if (belongs_to_other) continue;
    if (Contains(kLengths, name) && has_length) continue;
    if (Contains(kTestSets, name) && has_test_set) continue;
    // They followed from the schedule and its length.
    const bool is_of_schedule = name == "--warmup-steps" || name == "--min-lr";
    if (is_of_schedule && !saved.is_given && (has_schedule || has_length)) continue;
    if (has_model && (name == "--layers" || name == "--width")) continue;
    // The new file may have a context of its own, which makes other rows.
    const bool is_of_file =
        name == "--context" || name == "--vocabulary" || name == "--train-samples";
    if (has_model && is_of_file && !saved.is_given) continue;
    // It followed from what was left for training.
    if (has_test_set && name == "--train-samples" && !saved.is_given) continue;
    options.taken.push_back(name);
    if (!saved.is_given) options.taken_defaults.push_back(name);
    RETURN_IF_ERROR(TakeSavedOption(flags, saved));
  }
  if (!has_model) options.model_text = manifest.model_source;
  return absl::OkStatus();
}

namespace {

// An option that decides the results and is not that of the checkpoint.
struct Change {
  std::string name;
  std::string text;
};

std::vector<Change> ChangesOf(const engine::Manifest& manifest, const engine::RunConfig& options,
                              const engine::TrainingRun& run) {
  std::vector<Change> changes;
  for (const auto& [name, value] : OptionsInEffect(options, run)) {
    if (name == "--tokenizer") continue;  // wherever the same one is now
    const bool is_length = Contains(kLengths, name);
    const bool is_test_set = Contains(kTestSets, name);
    for (const engine::SavedOption& saved : manifest.options) {
      const std::string was = PresentName(saved.name);
      const bool is_same = was == name && saved.value == value;
      const bool is_of_both = was == name || (is_length && Contains(kLengths, was)) ||
                              (is_test_set && Contains(kTestSets, was));
      if (!is_of_both || is_same) continue;
      changes.push_back(
          {name, was == name
                     ? absl::StrCat(name, " was ", saved.value, " and is ", value)
                     : absl::StrCat(was, " was ", saved.value, ", and now ", name, " is ", value)});
    }
  }
  return changes;
}

}  // namespace

absl::Status CheckData(const engine::Manifest& manifest, const engine::RunConfig& options,
                       const engine::TrainingRun& run) {
  const std::string other = DescribeOtherData(manifest, options, run);
  if (other.empty() || options.data_changed) return absl::OkStatus();
  for (const Change& change : ChangesOf(manifest, options, run)) {
    if (FindRunFlag(change.name)->is_of_data()) return absl::OkStatus();  // which is known
  }
  return base::DataError(other, absl::StatusCode::kFailedPrecondition);
}

std::string DescribeChanges(const engine::Manifest& manifest, const engine::RunConfig& options,
                            const engine::TrainingRun& run) {
  std::vector<std::string> changes;
  const engine::DataFingerprint& data = run.data.fingerprint;
  const bool has_same_data = data != engine::DataFingerprint() && data == manifest.data;
  for (const Change& change : ChangesOf(manifest, options, run)) {
    const bool has_moved = change.name == "--data" || change.name == "--test-data";
    if (!has_same_data || !has_moved) changes.push_back(change.text);
  }
  const bool moved = manifest.encoding.rows_move;
  if (manifest.encoding.vocabulary > 0 && moved != run.data.encoding.rows_move) {
    changes.push_back(moved ? "each epoch had other rows of tokens"
                            : "every epoch had the same rows of tokens");
  }
  return absl::StrJoin(changes, "; ");
}

}  // namespace stagecoach::tools
