#ifndef STAGECOACH_TOOLS_STAGECOACH_FLAGS_RUN_FLAGS_H_
#define STAGECOACH_TOOLS_STAGECOACH_FLAGS_RUN_FLAGS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/session/run_config.h"
#include "tools/stagecoach/flags/cli11_fwd.h"

// The one table of the flags that fill engine::RunConfig and OutputOptions. A new flag is a field
// there and a row here; one that decides the results also has a row in
// engine/session/decisive_options.cc, by which its value in effect is saved and compared.
namespace stagecoach::tools {

// What a command prints and writes of a run, which is nothing to the run.
struct OutputOptions {
  bool json = false;
  bool verbose = false;  // also print the plan and what each device did
  bool explain = false;  // print the shapes of a step first
  // The file and the folder for the metrics of steps and evaluations; "": none.
  std::string metrics, tensorboard;
  std::string
      prometheus;    // a file that has the newest metrics, in Prometheus' text format; "": none
  std::string html;  // the file of a page about the run; "": it is in the folder of checkpoints
};

// What a checkpoint keeps of a flag, and what a run takes from it that is
// resumed.
enum class FlagSaving : uint8_t {
  kNever,      // nothing: it is about this invocation alone, or names a file that is
               // written
  kAlways,     // its value in effect, if it has one, or else its text, if it was
               // given
  kOnlyGiven,  // the same, but it is taken only if it was given: other data may
               // have another
};

// What a flag decides: each includes those before it.
enum class FlagScope : uint8_t {
  kModel,     // what a profile is of: data, model, optimizer and devices
  kPlan,      // how the model is cut
  kTraining,  // a run
};

// What is special about a flag.
struct FlagRules {
  FlagSaving saving = FlagSaving::kAlways;
  std::string alias = {};  // another name
  bool is_output = false;  // names a file that is written
  // A plan settles it, and a resumed run with another plan does not take it from the checkpoint.
  bool is_of_plan = false;
  // It is not taken from a checkpoint where these have another value than the run had: "--beta1"
  // belongs to "--optimizer".
  std::vector<std::string> belongs_to = {};
  std::string needs = {};                  // it is refused without this flag
  std::vector<std::string> excludes = {};  // it is refused beside these
};

struct RunFlag {
  bool is_switch() const { return placeholder.empty(); }
  // Whether it is about the data that are read, and so explains that they differ.
  bool is_of_data() const { return group == "Data" || name == "--seed"; }

  std::string name;         // "--devices"
  std::string placeholder;  // of its value, for --help; "": it is a switch
  std::string help;
  // Reads the value, of a switch any text. InvalidArgument: it is none, and what was expected.
  std::function<absl::Status(const std::string& value, engine::RunConfig& options)> set;
  FlagRules rules = {};
  // Instead of `set`, of a flag about output.
  std::function<absl::Status(const std::string& value, OutputOptions& output)> set_output = {};
  std::string group = {};  // in --help
  FlagScope scope = FlagScope::kTraining;
};

// All of them, in the order of --help.
absl::Span<const RunFlag> RunFlags();

// The one of this name; null: there is none.
const RunFlag* FindRunFlag(std::string_view name);

// Returns the present name of a flag: that of the last release, in a checkpoint or a script, stays
// valid for one release, and other programs' names for the same, such as --lr, are understood.
// Other names are returned as they are.
std::string PresentName(const std::string& name);

// A flag as a command has it: its help, or its group in --help, may be the
// command's own.
struct FlagUse {
  const char* name;
  std::string help = {};   // "": the table's
  std::string group = {};  // "": the table's
};

// Adds these flags, in this order, to a command, after those that they need or
// exclude. `options` and `output` must outlive the parse. Flags about output need `output`.
void AddRunFlags(CLI::App& app, engine::RunConfig& options, absl::Span<const FlagUse> uses,
                 OutputOptions* output = nullptr);

// All flags of a scope, and of those within it; those about output only with `output`.
void AddModelFlags(CLI::App& app, engine::RunConfig& options);
void AddPlanFlags(CLI::App& app, engine::RunConfig& options);
void AddTrainFlags(CLI::App& app, engine::RunConfig& options, OutputOptions* output = nullptr);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_FLAGS_RUN_FLAGS_H_
