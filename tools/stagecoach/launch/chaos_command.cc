#include <signal.h>
#include <sys/types.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/units.h"
#include "engine/checkpoint/checkpoint.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/launch/local_processes.h"
#include "tools/stagecoach/launch/supervision.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/scratch_folder.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

constexpr int kReplicas = 2;
constexpr absl::Duration kSilence = absl::Seconds(1);
constexpr int64_t kMostLogBytes = int64_t{256} << 20;

struct ChaosOptions {
  int processes = 4;
  int faults = 10;
  uint64_t seed = 1;
  bool json = false;
};

// Returns the command that all runs train with: a few seconds' worth.
absl::StatusOr<std::vector<std::string>> TrainCommand(const std::vector<std::string>& more) {
  ASSIGN_OR_RETURN(const std::string self, OwnProgram());
  std::vector<std::string> command = {self,
                                      "train",
                                      "--json",
                                      "--data",
                                      "synthetic:4000x64x10",
                                      "--layers",
                                      "8",
                                      "--width",
                                      "256",
                                      "--global-batch-size",
                                      "64",
                                      "--micro-batches",
                                      "8",
                                      "--gradient-blocks",
                                      absl::StrCat(kReplicas),
                                      "--epochs",
                                      "20"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

// Returns "from step 200".
std::string NewestCheckpoint(const std::string& run) {
  const absl::StatusOr<std::vector<engine::FoundCheckpoint>> found = engine::ListCheckpoints(run);
  if (!found.ok() || found->empty()) return "from the beginning";
  return absl::StrCat("from step ", base::FormatCount(found->back().step));
}

struct Result {
  int64_t steps = 0;
  std::string parameters, losses;  // fingerprints
};

// Reads what rank 0 has printed at the end.
absl::StatusOr<Result> ReadResult(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(folder + "/rank-0.out", kMostLogBytes));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  const nlohmann::json end =
      lines.empty() ? nlohmann::json() : nlohmann::json::parse(lines.back(), nullptr, false);
  if (!end.is_object() || end.value("event", "") != "end") {
    return absl::InternalError(absl::StrCat("the run has no result; see ", folder));
  }
  return Result{.steps = end["steps"],
                .parameters = end["parameters_hash"],
                .losses = end["step_losses_hash"]};
}

absl::StatusOr<Result> RunAndRead(const Supervision& supervision) {
  RETURN_IF_ERROR(base::MakeFolders(supervision.processes.log_dir));
  ASSIGN_OR_RETURN(const int status, Supervise(supervision));
  if (status == kExitOk) return ReadResult(supervision.processes.log_dir);
  const bool is_stop = status == kExitHungUp || status == kExitInterrupted ||
                       status == kExitBrokenPipe || status == kExitTerminated;
  // The status is that of a victim just disturbed: otherwise all would have been started again.
  const bool is_victim = status == 128 + SIGKILL && supervision.max_restarts > 0;
  if (is_stop || is_victim) return absl::CancelledError("stopped by a signal");
  return absl::InternalError(
      absl::StrCat("the run ended with status ", status, "; see ", supervision.processes.log_dir));
}

// Ends the processes that Supervise runs, as if the user had ended this one, once there is no
// output any more. Must be called from `disturb`.
void EndIfHungUp() {
  static bool has_ended = false;
  if (StopRequested() && !std::exchange(has_ended, true)) raise(SIGTERM);
}

// Kills and stops processes, one at a time, at random moments.
class Saboteur {
 public:
  Saboteur(const ChaosOptions& options, absl::Duration whole_run)
      : json_(options.json),
        faults_(options.faults),
        mean_(std::max(2 * whole_run / (options.faults + 1), absl::Milliseconds(300))),
        random_(options.seed) {
    Schedule();
  }

  int done() const { return done_; }
  absl::Duration elapsed() const { return absl::Now() - begin_; }

  void Disturb(absl::Span<const pid_t> processes) {
    EndIfHungUp();
    if (done_ == faults_ || absl::Now() < next_) return;
    const size_t victim = random_() % processes.size();
    const bool stops = random_() % 3 == 0;
    const double seconds = absl::ToDoubleSeconds(elapsed());
    if (json_) {
      PrintJsonLine({{"event", stops ? "stops" : "kills"}, {"seconds", seconds}, {"rank", victim}});
    } else {
      absl::PrintF("%7.1f s  %s rank %d\n", seconds, stops ? "stops" : "kills", victim);
      std::fflush(stdout);
    }
    kill(processes[victim], stops ? SIGSTOP : SIGKILL);
    ++done_;
    // The next fault waits until there are new processes: one of these is gone.
    next_ = absl::InfiniteFuture();
  }

  // Called when there are new processes.
  void Schedule() {
    std::uniform_real_distribution<double> share(0.2, 1.8);
    next_ = absl::Now() + share(random_) * mean_;
  }

 private:
  const bool json_;
  const int faults_;
  const absl::Duration mean_;
  std::mt19937_64 random_;
  const absl::Time begin_ = absl::Now();
  absl::Time next_;
  int done_ = 0;
};

// Reports the run of one process, and what comes now.
void TellAlone(const ChaosOptions& options, const Result& result, absl::Duration took) {
  absl::PrintF("left alone, one process trains %s steps in %s: parameters %s\n",
               base::FormatCount(result.steps), base::FormatDuration(took), result.parameters);
  const int stages = options.processes / kReplicas;
  absl::PrintF("now %d processes train the same, as %s of %d replicas, and are disturbed:\n",
               options.processes, stages == 1 ? "1 stage" : absl::StrCat(stages, " stages"),
               kReplicas);
  std::fflush(stdout);
}

// Runs in `folder`, which is kept if something is to be investigated.
absl::StatusOr<int> TrainTwice(const ChaosOptions& options, ScratchFolder& folder) {
  const absl::Time begin = absl::Now();
  Supervision alone;
  ASSIGN_OR_RETURN(alone.processes.command, TrainCommand({"--stages", "1"}));
  alone.processes.disturb = [](absl::Span<const pid_t>) { EndIfHungUp(); };
  alone.processes.log_dir = folder.path() + "/alone";
  const absl::StatusOr<Result> expected = RunAndRead(alone);
  RETURN_IF_ERROR(expected.status());
  const absl::Duration took = absl::Now() - begin;
  if (options.json) {
    PrintJsonLine({{"event", "alone"},
                   {"steps", expected->steps},
                   {"seconds", absl::ToDoubleSeconds(took)},
                   {"step_losses_hash", expected->losses},
                   {"parameters_hash", expected->parameters}});
  } else {
    TellAlone(options, *expected, took);
  }
  const int stages = options.processes / kReplicas;
  const std::string run = folder.path() + "/run";
  Saboteur saboteur(options, took);
  ASSIGN_OR_RETURN(
      std::vector<std::string> command,
      TrainCommand({"--stages", absl::StrCat(stages), "--replicas", absl::StrCat(kReplicas),
                    "--checkpoint", run, "--checkpoint-every", "25"}));
  Supervision disturbed;
  disturbed.processes = {
      .processes = options.processes,
      .command = std::move(command),
      .log_dir = folder.path() + "/disturbed",
      .patience = absl::Seconds(2),
      .silence = kSilence,
      .disturb = [&](absl::Span<const pid_t> processes) { saboteur.Disturb(processes); }};
  disturbed.max_restarts = std::numeric_limits<int>::max();
  disturbed.restart_arguments = {"--resume"};
  int restarts = 0;
  disturbed.on_restart = [&](const std::string& cause, const std::string& which, int restart) {
    restarts = restart;
    const double seconds = absl::ToDoubleSeconds(saboteur.elapsed());
    const std::string first_cause = cause.substr(0, cause.find(';'));
    if (options.json) {
      PrintJsonLine({{"event", "restart"},
                     {"seconds", seconds},
                     {"cause", first_cause},
                     {"all", which != "it"}});
    } else {
      absl::PrintF("%7.1f s  %s: %s\n", seconds, first_cause,
                   which == "it" ? "another takes its place, and all continue from their last step"
                                 : absl::StrCat("all start again, ", NewestCheckpoint(run)));
      std::fflush(stdout);
    }
    saboteur.Schedule();
  };
  const absl::StatusOr<Result> result = RunAndRead(disturbed);
  RETURN_IF_ERROR(result.status());
  const bool is_same = result->parameters == expected->parameters &&
                       result->losses == expected->losses && result->steps == expected->steps;
  if (options.json) {
    PrintJsonLine({{"event", "end"},
                   {"seconds", absl::ToDoubleSeconds(saboteur.elapsed())},
                   {"faults", saboteur.done()},
                   {"restarts", restarts},
                   {"steps", result->steps},
                   {"step_losses_hash", result->losses},
                   {"parameters_hash", result->parameters},
                   {"same", is_same}});
    return is_same ? kExitOk : kExitDifferent;
  }
  absl::PrintF("%7.1f s  done, after %d faults and %d restarts: parameters %s\n",
               absl::ToDoubleSeconds(saboteur.elapsed()), saboteur.done(), restarts,
               result->parameters);
  if (is_same) {
    absl::PrintF("the parameters and the losses of all steps have the same bits\n");
    return kExitOk;
  }
  absl::PrintF("the bits DIFFER: see %s\n", folder.path());
  return kExitDifferent;
}

absl::StatusOr<int> Chaos(const ChaosOptions& options) {
  if (options.processes % kReplicas != 0) {
    return base::UsageError(absl::StrCat("--processes is ", options.processes,
                                         ", expected a multiple of ", kReplicas,
                                         ", the number of replicas"));
  }
  const StopOnHangUp hang_up;
  ASSIGN_OR_RETURN(const std::unique_ptr<ScratchFolder> folder, ScratchFolder::Make("chaos"));
  const absl::StatusOr<int> status = TrainTwice(options, *folder);
  if (absl::IsCancelled(status.status())) {
    if (!hang_up.has_hung_up()) PrintNotice("stopped by a signal: nothing was compared");
    return StatusOfStop();
  }
  if (!status.ok() || *status != kExitOk) folder->Keep();
  return status;
}

}  // namespace

Command AddChaosCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand(
      "chaos", "Kill processes of a run, and check that it ends as if nothing had happened");
  flags->footer(
      "Trains a small network in one process; then in several, which launch --max-restarts looks\n"
      "after, while they are killed (SIGKILL) and stopped (SIGSTOP) at random; and compares the\n"
      "bits of the results. Takes a minute or two.");
  const auto options = std::make_shared<ChaosOptions>();
  AddFlag(*flags, "-p,--processes", "P", options->processes, "Number of processes [4]",
          [](const std::string& text) { return ParseCount(text, 2, 16); });
  AddFlag(*flags, "--faults", "N", options->faults,
          "Number of times a process is killed or stopped [10]",
          [](const std::string& text) { return ParseCount(text, 0, 1'000'000); });
  AddFlag(*flags, "--seed", "N", options->seed, "Random seed of the faults [1]",
          [](const std::string& text) {
            return ParseCount(text, 0, std::numeric_limits<int64_t>::max());
          });
  flags->add_flag("--json", options->json, "Print JSON, one object per line");
  return {flags, [options] { return Chaos(*options); }};
}

}  // namespace stagecoach::tools
