#include "tools/cli/saved_run.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "engine/data/token_info.h"
#include "engine/train/save_interval.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/messages.h"

namespace stagecoach::tools {
namespace {

// Of this invocation alone, or names of files that are written.
constexpr absl::string_view kNotSaved[] = {
    "--help",   "--checkpoint",   "--init",  "--metrics", "--tensorboard",
    "--resume", "--data-changed", "--every", "--keep",    "--keep-every",
    "--json",   "--explain",      "--trace", "--plan",    "--simulated-trace",
    "--tuning"};
// What a plan settles.
constexpr absl::string_view kOfPlan[] = {"--devices",  "--replicas",        "--gradient-blocks",
                                         "--schedule", "--shard-optimizer", "--reduction",
                                         "--chunks",   "--batch",           "--microbatches",
                                         "--profile",  "--recompute"};

// One of them says how long a run is; at most one, what it is tested with.
constexpr absl::string_view kLengths[] = {"--epochs", "--steps"};
constexpr absl::string_view kTestSets[] = {"--test-data", "--test-fraction"};

// Some optimizer's own.
constexpr absl::string_view kOfGpus[] = {"--gpus", "--exchange", "--tuning"};
constexpr absl::string_view kOfOptimizer[] = {"--beta1", "--beta2", "--momentum"};

template <size_t kN>
bool Contains(const absl::string_view (&names)[kN], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// The shortest text that reads as this number.
template <typename Number>
std::string Text(Number value) {
  char text[32];
  return std::string(text, std::to_chars(std::begin(text), std::end(text), value).ptr);
}

// The file by which the data are tokens, which they may name themselves; "": it is not known.
std::string TokenizerOf(const RunOptions& options) {
  if (!options.tokenizer.empty()) return options.tokenizer;
  const absl::StatusOr<std::optional<engine::TokenInfo>> info =
      engine::ReadTokenInfo(DataOf(options));
  return info.ok() && info->has_value() ? (*info)->tokenizer : "";
}

// Those that decide the results, as they are in effect.
std::vector<std::pair<std::string, std::string>> Decisive(const RunOptions& options,
                                                          const Run& run) {
  const partition::Plan& plan = run.prepared.plan;
  const engine::Optimizer& optimizer = run.prepared.optimizer;
  std::vector<std::pair<std::string, std::string>> decisive = {
      {"--data", DataOf(options)},
      {"--label", options.label},
      {"--rows", absl::StrCat(run.data.train->rows())},
      {"--model", NameOfModel(options)},
      {"--batch", absl::StrCat(plan.batch_rows())},
      {"--microbatches", absl::StrCat(plan.micro_batches())},
      {"--gradient-blocks", absl::StrCat(plan.replication.gradient_blocks)},
      {"--reduction", partition::Name(plan.replication.reduction)},
      {"--precision", kernels::PrecisionName(run.prepared.device.precision)},
      {"--optimizer", options.optimizer},
      {"--learning-rate", Text(run.learning_rate.peak)},
      {"--lr-schedule", options.learning_rate_schedule},
      {"--weight-decay", Text(optimizer.weight_decay)},
      {"--seed", absl::StrCat(options.seed)}};
  if (run.learning_rate.kind == engine::LearningRate::Kind::kWarmupCosine) {
    decisive.emplace_back("--warmup-steps", absl::StrCat(run.learning_rate.warmup_steps));
    decisive.emplace_back("--min-lr", Text(run.learning_rate.minimum));
  }
  decisive.push_back(
      options.steps.has_value()
          ? std::pair<std::string, std::string>("--steps", absl::StrCat(*options.steps))
          : std::pair<std::string, std::string>("--epochs", absl::StrCat(options.epochs)));
  if (engine::HoldsArrays(DataOf(options))) {
    const bool is_last = options.channels == engine::ChannelOrder::kLast;
    decisive.emplace_back("--channels", is_last ? "last" : "first");
  }
  if (run.data.encoding.labels_are_numbers()) decisive.emplace_back("--loss", "mse");
  if (!options.test_data.empty()) decisive.emplace_back("--test-data", options.test_data);
  if (options.test_fraction.has_value()) {
    decisive.emplace_back("--test-fraction", Text(*options.test_fraction));
  }
  if (NameOfModel(options) == kDefaultModel) {
    decisive.emplace_back("--layers", absl::StrCat(options.layers));
    decisive.emplace_back("--width", absl::StrCat(options.width));
  }
  const engine::TensorSpec& input = run.data.train->spec().inputs.front();
  if (input.has_ids()) {
    decisive.emplace_back("--context", absl::StrCat(input.shape.elements()));
    decisive.emplace_back("--vocabulary", absl::StrCat(input.vocabulary));
    const std::string tokenizer = TokenizerOf(options);
    if (!tokenizer.empty()) decisive.emplace_back("--tokenizer", tokenizer);
  }
  if (optimizer.kind == engine::Optimizer::Kind::kSgd) {
    decisive.emplace_back("--momentum", Text(optimizer.momentum));
  } else {
    decisive.emplace_back("--beta1", Text(optimizer.beta1));
    decisive.emplace_back("--beta2", Text(optimizer.beta2));
  }
  if (optimizer.clip_norm > 0) decisive.emplace_back("--clip-norm", Text(optimizer.clip_norm));
  return decisive;
}

// Time between failures, from what a launcher says of those so far.
absl::Duration BetweenFailures(int restarts) {
  constexpr absl::Duration kUnknown = absl::Hours(24);
  const char* const started = std::getenv("STAGECOACH_STARTED");
  int64_t seconds = 0;
  if (started == nullptr || !absl::SimpleAtoi(started, &seconds) || restarts < 1) return kUnknown;
  return std::min(kUnknown, (absl::Now() - absl::FromUnixSeconds(seconds)) / restarts);
}

// Adds the folders of checkpoints in this one, and in those that it has.
void AddCheckpointFolders(const std::filesystem::path& folder, int levels, int& looks,
                          std::vector<std::string>& found) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(
           folder.empty() ? "." : folder,
           std::filesystem::directory_options::skip_permission_denied, ignored)) {
    if (looks-- <= 0) return;
    if (!entry.is_directory(ignored) || entry.is_symlink(ignored)) continue;
    const std::string path = entry.path().lexically_normal().string();
    const absl::StatusOr<std::vector<engine::FoundCheckpoint>> checkpoints =
        engine::ListCheckpoints(path);
    if (checkpoints.ok() && !checkpoints->empty()) {
      found.push_back(path);
    } else if (levels > 1) {
      AddCheckpointFolders(entry.path(), levels - 1, looks, found);
    }
  }
}

// Whether the flags name another optimizer than the saved run had.
// Whether a flag is given, and with another value than the checkpoint has.
bool HasOther(const std::string& name, const CLI::App& flags, const engine::Manifest& manifest) {
  const CLI::Option* const own = flags.get_option(name);
  return own->count() > 0 &&
         std::any_of(manifest.options.begin(), manifest.options.end(), [&](const auto& saved) {
           return saved.name == name && saved.value != own->results().back();
         });
}

}  // namespace

absl::StatusOr<std::optional<base::FileLock>> LockCheckpoints(const std::string& folder) {
  if (folder.empty() || !base::Exists(folder)) return std::nullopt;
  absl::StatusOr<base::FileLock> lock =
      base::FileLock::Take(absl::StrCat(folder, "/.lock"), base::DescribeProcess());
  if (lock.ok()) return *std::move(lock);
  if (absl::IsFailedPrecondition(lock.status())) {
    return From(Origin::kConfiguration,
                absl::FailedPreconditionError(absl::StrCat(
                    folder, " belongs to a run that is still there (", lock.status().message(),
                    "): two in one folder would remove each other's checkpoints; end that one, or "
                    "name another folder")));
  }
  if (!absl::IsUnimplemented(lock.status())) return From(Origin::kOutput, lock.status());
  PrintNotice(
      absl::StrCat(lock.status().message(), ": another run in this folder would not be noticed"));
  return std::nullopt;
}

std::vector<std::string> CheckpointFoldersNear(const std::string& folder) {
  constexpr int kMostLooks = 2000;
  int looks = kMostLooks;
  std::vector<std::string> found;
  AddCheckpointFolders(folder, 1, looks, found);
  std::filesystem::path above = std::filesystem::path(folder).lexically_normal();
  if (!above.has_filename()) above = above.parent_path();
  above = above.parent_path();
  while (!above.empty() && !base::Exists(above.string())) above = above.parent_path();
  AddCheckpointFolders(above, 2, looks, found);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::vector<engine::SavedOption> OptionsToSave(const CLI::App& flags, const RunOptions& options,
                                               const Run& run) {
  std::vector<engine::SavedOption> saved;
  for (auto& [name, value] : Decisive(options, run)) {
    const auto& defaults = options.taken_defaults;
    const bool is_default = flags.get_option(name)->count() == 0 ||
                            std::find(defaults.begin(), defaults.end(), name) != defaults.end();
    saved.push_back({name, value, !is_default});
  }
  for (const CLI::Option* option : flags.get_options()) {
    const std::string name = option->get_name();
    const bool is_saved = std::any_of(saved.begin(), saved.end(),
                                      [&](const auto& other) { return other.name == name; });
    if (is_saved || option->count() == 0 || Contains(kNotSaved, name)) continue;
    saved.push_back({name, option->results().back(), true});
  }
  return saved;
}

absl::StatusOr<engine::Checkpoint> OpenCheckpoint(const std::string& path) {
  std::vector<absl::Status> passed_over;
  absl::StatusOr<engine::Checkpoint> checkpoint = engine::OpenNewest(path, passed_over);
  if (checkpoint.ok()) {
    for (const absl::Status& status : passed_over) {
      PrintNotice(absl::StrCat("passes over a checkpoint: ", status.message()));
    }
    return checkpoint;
  }
  return From(Origin::kData, passed_over.empty() ? checkpoint.status() : passed_over.front());
}

absl::Status TakeSavedOption(CLI::App& flags, const engine::SavedOption& saved) {
  CLI::Option* const option = flags.get_option(saved.name);
  try {
    option->add_result(saved.value);
    option->run_callback();
  } catch (const CLI::Error& error) {
    return From(Origin::kData, absl::InvalidArgumentError(
                                   absl::StrCat("an option of the checkpoint, ", error.what())));
  }
  return absl::OkStatus();
}

absl::Status TakeSavedOptions(CLI::App& flags, const engine::Manifest& manifest,
                              RunOptions& options) {
  const bool has_plan = flags.get_option("--plan")->count() > 0;
  const bool has_model = flags.get_option("--model")->count() > 0;
  const auto has_any = [&flags](const auto& names) {
    return std::any_of(std::begin(names), std::end(names), [&](absl::string_view name) {
      return flags.get_option(std::string(name))->count() > 0;
    });
  };
  const bool has_length = has_any(kLengths);
  const bool has_test_set = has_any(kTestSets);
  const bool has_other_optimizer = HasOther("--optimizer", flags, manifest);
  const bool has_other_device = HasOther("--device", flags, manifest);
  const bool has_other_devices = HasOther("--devices", flags, manifest);
  const bool has_schedule = flags.get_option("--lr-schedule")->count() > 0;
  for (const engine::SavedOption& saved : manifest.options) {
    CLI::Option* const option = flags.get_option_no_throw(saved.name);
    if (option == nullptr || Contains(kNotSaved, saved.name)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the checkpoint was saved with the option ", saved.name,
                       ", which is not known here (it was saved by ", manifest.program, ")"));
    }
    if (option->count() > 0 || (has_plan && Contains(kOfPlan, saved.name))) continue;
    // Data of ids name it themselves, if it is known; and other data may hold no arrays.
    const bool is_of_data = saved.name == "--tokenizer" || saved.name == "--channels";
    if (is_of_data && !saved.is_given) continue;
    if (has_other_optimizer && Contains(kOfOptimizer, saved.name)) continue;
    if (has_other_device && Contains(kOfGpus, saved.name)) continue;
    if (has_other_devices && saved.name == "--gpus") continue;  // it names one for each
    if (Contains(kLengths, saved.name) && has_length) continue;
    if (Contains(kTestSets, saved.name) && has_test_set) continue;
    // They followed from the schedule and its length.
    const bool is_of_schedule = saved.name == "--warmup-steps" || saved.name == "--min-lr";
    if (is_of_schedule && !saved.is_given && (has_schedule || has_length)) continue;
    if (has_model && (saved.name == "--layers" || saved.name == "--width")) continue;
    // The new file may have a context of its own, which makes other rows.
    const bool is_of_file =
        saved.name == "--context" || saved.name == "--vocabulary" || saved.name == "--rows";
    if (has_model && is_of_file && !saved.is_given) continue;
    // It followed from what was left for training.
    if (has_test_set && saved.name == "--rows" && !saved.is_given) continue;
    options.taken.push_back(saved.name);
    if (!saved.is_given) options.taken_defaults.push_back(saved.name);
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

std::vector<Change> ChangesOf(const engine::Manifest& manifest, const RunOptions& options,
                              const Run& run) {
  std::vector<Change> changes;
  for (const auto& [name, value] : Decisive(options, run)) {
    if (name == "--tokenizer") continue;  // wherever the same one is now
    const bool is_length = Contains(kLengths, name);
    const bool is_test_set = Contains(kTestSets, name);
    for (const engine::SavedOption& saved : manifest.options) {
      const bool is_same = saved.name == name && saved.value == value;
      const bool is_of_both = saved.name == name || (is_length && Contains(kLengths, saved.name)) ||
                              (is_test_set && Contains(kTestSets, saved.name));
      if (!is_of_both || is_same) continue;
      changes.push_back({name, saved.name == name
                                   ? absl::StrCat(name, " was ", saved.value, " and is ", value)
                                   : absl::StrCat(saved.name, " was ", saved.value, ", and now ",
                                                  name, " is ", value)});
    }
  }
  return changes;
}

}  // namespace

std::string DescribeOtherData(const engine::Manifest& manifest, const RunOptions& options,
                              const Run& run) {
  const engine::DataFingerprint& was = manifest.data;
  const engine::DataFingerprint& is = run.data.fingerprint;
  if (was == engine::DataFingerprint() || is == engine::DataFingerprint() || was == is) return "";
  const bool is_test = was.train == is.train;
  return absl::StrCat(is_test ? TestDataOf(options) : DataOf(options), " is not what it was when ",
                      engine::CheckpointName(manifest.step), " was saved",
                      is_test ? " (its test set)" : "");
}

absl::Status CheckData(const engine::Manifest& manifest, const RunOptions& options,
                       const Run& run) {
  constexpr absl::string_view kOfData[] = {
      "--data", "--label",   "--channels",   "--loss",      "--rows",
      "--seed", "--context", "--vocabulary", "--test-data", "--test-fraction"};
  const std::string other = DescribeOtherData(manifest, options, run);
  if (other.empty() || options.data_changed) return absl::OkStatus();
  for (const Change& change : ChangesOf(manifest, options, run)) {
    if (Contains(kOfData, change.name)) return absl::OkStatus();  // which is known
  }
  return From(Origin::kData, absl::FailedPreconditionError(other));
}

std::string DescribeChanges(const engine::Manifest& manifest, const RunOptions& options,
                            const Run& run) {
  std::vector<std::string> changes;
  for (const Change& change : ChangesOf(manifest, options, run)) changes.push_back(change.text);
  const bool moved = manifest.encoding.rows_move;
  if (manifest.encoding.vocabulary > 0 && moved != run.data.encoding.rows_move) {
    changes.push_back(moved ? "each epoch had other rows of tokens"
                            : "every epoch had the same rows of tokens");
  }
  return absl::StrJoin(changes, "; ");
}

AutomaticSaves::AutomaticSaves(engine::Rendezvous* rendezvous, absl::Duration deadline,
                               int restarts)
    : rendezvous_(rendezvous),
      deadline_(deadline),
      restarts_(restarts),
      last_(absl::Now()),
      interval_(absl::Seconds(10)) {  // the first save shows what one costs
  StartVote();
}

void AutomaticSaves::StartVote() {
  vote_.emplace(rendezvous_, engine::Vote::Options{.wanted =
                                                       [this] {
                                                         // One process decides: clocks differ.
                                                         return (rendezvous_ == nullptr ||
                                                                 rendezvous_->rank() == 0) &&
                                                                IsDue();
                                                       },
                                                   .deadline = deadline_});
}

absl::StatusOr<bool> AutomaticSaves::Wanted() {
  absl::StatusOr<bool> passes = vote_->Passes();
  if (!passes.ok() || !*passes) return passes;
  last_ = absl::Now();
  StartVote();
  return true;
}

void AutomaticSaves::Saved(const engine::SaveReport& save) {
  interval_ = engine::SaveInterval(save.blocked, BetweenFailures(restarts_));
}

engine::CheckpointOptions CheckpointOptionsOf(const CLI::App& flags, const RunOptions& options,
                                              const Run& run, AutomaticSaves& automatic) {
  engine::CheckpointOptions checkpoints;
  if (options.checkpoints.empty()) return checkpoints;
  checkpoints.folder = options.checkpoints;
  if (options.every_steps.has_value()) {
    checkpoints.every_steps = *options.every_steps;
  } else {
    checkpoints.wanted = [&automatic] { return automatic.Wanted(); };
  }
  checkpoints.save.retention = {.newest = options.kept_checkpoints,
                                .every_steps = options.kept_every_steps};
  checkpoints.save.program = "stagecoach " STAGECOACH_VERSION;
  checkpoints.save.model_source = run.model_text;
  checkpoints.save.options = OptionsToSave(flags, options, run);
  return checkpoints;
}

}  // namespace stagecoach::tools
