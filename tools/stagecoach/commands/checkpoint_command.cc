#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "base/text/utf8.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/compare.h"
#include "engine/checkpoint/export.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/checkpoint/peft.h"
#include "engine/checkpoint/shard_files.h"
#include "engine/session/saved_run.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/tensor_difference.h"
#include "tools/stagecoach/terminal/terminal.h"
#include "tools/stagecoach/terminal/terminal_notices.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

using engine::Checkpoint;
using engine::Manifest;
using engine::SavedFile;

struct CheckpointCommandOptions {
  CLI::App* inspect = nullptr;
  CLI::App* verify = nullptr;
  CLI::App* diff = nullptr;
  CLI::App* export_parameters = nullptr;
  std::string path, other;
  std::string output;
  std::string format = "safetensors";                 // or "hf", "torchvision"
  std::string tokenizer;                              // for "hf"; "": where the run had it
  std::optional<kernels::Quantization> quantization;  // for "hf"
  bool json = false;
};

struct FileSums {
  int64_t parameters = 0;
  int64_t parameter_bytes = 0;
  int64_t optimizer_bytes = 0;
};

void AddFile(const SavedFile& file, FileSums& sums) {
  if (engine::IsOptimizerFile(file.name)) {
    sums.optimizer_bytes += file.bytes;
    return;
  }
  sums.parameter_bytes += file.bytes;
  for (const SavedFile::Tensor& tensor : file.tensors) sums.parameters += tensor.shape.elements();
}

std::string CheckpointTable(const Manifest& manifest) {
  using Align = base::TextTable::Align;
  std::map<int, FileSums> by_layer;
  for (const SavedFile& file : manifest.files) {
    const int layer = engine::LayerOfFile(file.name);
    if (layer >= 0) AddFile(file, by_layer[layer]);
  }
  base::TextTable table({{"layer", Align::kRight},
                         {"", Align::kLeft},
                         {"parameters", Align::kRight},
                         {"values", Align::kRight},
                         {"optimizer", Align::kRight}});
  for (size_t i = 0; i < manifest.layers.size(); ++i) {
    const FileSums& sums = by_layer[static_cast<int>(i)];
    table.AddRow({absl::StrCat(i), manifest.layers[i], base::FormatCount(sums.parameters),
                  base::FormatBytes(sums.parameter_bytes),
                  base::FormatBytes(sums.optimizer_bytes)});
  }
  return table.ToString(TerminalColumns());
}

absl::StatusOr<int> InspectCheckpoint(const CheckpointCommandOptions& options) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                   engine::OpenCheckpoint(options.path, TerminalNotices()));
  const Manifest& manifest = checkpoint.manifest();
  if (options.json) {
    absl::PrintF("%s", ToJson(manifest));
    return kExitOk;
  }
  FileSums sums;
  for (const SavedFile& file : manifest.files) AddFile(file, sums);
  const partition::Plan& plan = manifest.plan.plan;
  std::string text = absl::StrCat(checkpoint.path(), "\n");
  absl::StrAppendFormat(&text, "saved      %s by %s, on %s in %s\n", manifest.saved_at,
                        manifest.program, manifest.device, manifest.precision);
  // A position at the beginning of an epoch is the end of the previous one.
  const engine::DataPosition& position = manifest.position;
  const bool is_at_end = position.rows == 0 && position.epoch > 1;
  absl::StrAppendFormat(
      &text, "run        after step %s, %s epoch %d; plan %s over %s%s\n",
      base::FormatCount(manifest.step), is_at_end ? "at the end of" : "in",
      is_at_end ? position.epoch - 1 : position.epoch, plan.schedule.name,
      plan.num_stages() == 1 ? "1 stage" : absl::StrCat(plan.num_stages(), " stages"),
      plan.replicas() == 1 ? "" : absl::StrCat(", ", plan.replicas(), " replicas"));
  absl::StrAppendFormat(&text, "model      %s parameters, loss %s\n",
                        base::FormatCount(sums.parameters), manifest.loss);
  absl::StrAppendFormat(&text, "bytes      %s of values, %s of the optimizer's states\n",
                        base::FormatBytes(sums.parameter_bytes),
                        base::FormatBytes(sums.optimizer_bytes));
  std::vector<std::string> given, defaults;
  for (const engine::SavedOption& option : manifest.options) {
    (option.is_given ? given : defaults).push_back(absl::StrCat(option.name, " ", option.value));
  }
  absl::StrAppendFormat(&text, "given      %s\ndefaults   %s\n\n%s", absl::StrJoin(given, ", "),
                        absl::StrJoin(defaults, ", "), CheckpointTable(manifest));
  absl::PrintF("%s", base::EscapeControls(text));
  return kExitOk;
}

// For a run, verifies the newest, however damaged: an older one that is whole is no answer.
absl::StatusOr<int> VerifyCheckpoint(const CheckpointCommandOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<std::string> candidates, engine::CandidatesIn(options.path));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(candidates.front()));
  RETURN_IF_ERROR(checkpoint.Verify());
  int64_t bytes = 0;
  for (const SavedFile& file : checkpoint.manifest().files) bytes += file.bytes;
  if (options.json) {
    PrintJsonLine({{"checkpoint", checkpoint.path()},
                   {"step", checkpoint.manifest().step},
                   {"files", checkpoint.manifest().files.size()},
                   {"bytes", bytes}});
    return kExitOk;
  }
  absl::PrintF("%s is whole: %d files, %s\n", checkpoint.path(), checkpoint.manifest().files.size(),
               base::FormatBytes(bytes));
  return kExitOk;
}

absl::StatusOr<int> DiffCheckpoints(const CheckpointCommandOptions& options) {
  ASSIGN_OR_RETURN(const Checkpoint left, engine::OpenCheckpoint(options.path, TerminalNotices()));
  ASSIGN_OR_RETURN(const Checkpoint right,
                   engine::OpenCheckpoint(options.other, TerminalNotices()));
  ASSIGN_OR_RETURN(const engine::CheckpointDifference difference, Compare(left, right));
  const int status = difference.empty() ? kExitOk : kExitDifferent;
  if (options.json) {
    PrintJsonLine(DifferenceToJson(difference));
    return status;
  }
  for (const auto& [names, path] : {std::pair(&difference.only_left, left.path()),
                                    std::pair(&difference.only_right, right.path())}) {
    for (const std::string& name : *names) {
      absl::PrintF("\"%s\" is only in %s\n", base::EscapeControls(name), path);
    }
  }
  absl::PrintF("%s", base::EscapeControls(DescribeTensors(difference)));
  return status;
}

// Returns where the tokenizer of a run is; "": it has none, or its file is gone, and then a line
// says so.
std::string TokenizerToExport(const CheckpointCommandOptions& options, const Manifest& manifest) {
  if (!options.tokenizer.empty()) return options.tokenizer;
  const engine::DataEncoding& encoding = manifest.encoding;
  if (encoding.vocabulary == 0 || encoding.tokens_are_bytes) return "";
  const std::string saved = engine::SavedOptionOf(manifest, "--tokenizer");
  if (saved.empty() || base::Exists(saved)) return saved;
  PrintNotice(absl::StrCat("the tokenizer is not written, since there is no ", saved,
                           " any more: say where it is with --tokenizer"));
  return "";
}

absl::StatusOr<int> ExportCheckpoint(const CheckpointCommandOptions& options) {
  const bool is_hugging_face = options.format == "hf";
  const bool makes_folder = is_hugging_face || options.format == "peft";
  if (!makes_folder) {
    RETURN_IF_ERROR(base::CheckWritable(options.output));
  }
  ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                   engine::OpenCheckpoint(options.path, TerminalNotices()));
  if (!is_hugging_face && !options.tokenizer.empty()) {
    return base::UsageError("--tokenizer is for --format hf, which writes it");
  }
  if (!is_hugging_face && options.quantization.has_value()) {
    return base::UsageError("--quantize is for --format hf");
  }
  const absl::Status status =
      is_hugging_face
          ? ExportToHuggingFace(checkpoint, options.output,
                                {.tokenizer = TokenizerToExport(options, checkpoint.manifest()),
                                 .quantization = options.quantization})
      : makes_folder
          ? ExportToPeft(checkpoint, engine::SavedOptionOf(checkpoint.manifest(), "--model"),
                         options.output)
      : options.format == "torchvision" ? ExportToTorchvision(checkpoint, options.output)
                                        : ExportParameters(checkpoint, options.output);
  if (absl::IsAlreadyExists(status)) return base::WithClass(base::ErrorClass::kUsage, status);
  RETURN_IF_ERROR(status);
  if (options.json) {
    PrintJsonLine({{"checkpoint", checkpoint.path()},
                   {"step", checkpoint.manifest().step},
                   {"format", options.format},
                   {"output", options.output}});
    return kExitOk;
  }
  absl::PrintF("wrote the %s of %s to %s\n", options.format == "peft" ? "adapters" : "parameters",
               checkpoint.path(), options.output);
  return kExitOk;
}

absl::StatusOr<int> RunCheckpoint(const CheckpointCommandOptions& options) {
  if (options.inspect->parsed()) return InspectCheckpoint(options);
  if (options.verify->parsed()) return VerifyCheckpoint(options);
  if (options.diff->parsed()) return DiffCheckpoints(options);
  if (options.export_parameters->parsed()) return ExportCheckpoint(options);
  return base::UsageError(
      "a checkpoint command is needed: inspect, verify, diff or export "
      "(see stagecoach checkpoint --help)");
}

absl::StatusOr<std::string> ParseExportFormat(const std::string& name) {
  return ParseChoice(name, {"safetensors", "hf", "peft", "torchvision"});
}

}  // namespace

Command AddCheckpointCommand(CLI::App& app) {
  CLI::App* flags =
      app.add_subcommand("checkpoint", "Inspect, verify, compare and export checkpoints");
  flags->footer(
      "A checkpoint is named by its folder, or by that of its run for the newest one there.");
  const auto options = std::make_shared<CheckpointCommandOptions>();
  const auto add = [&](const char* name, const char* description) {
    CLI::App* const command = flags->add_subcommand(name, description);
    AddFlag(*command, "checkpoint", "DIR", options->path, "The checkpoint", ParseFolder)
        ->required();
    command->add_flag("--json", options->json, "Print one JSON object");
    return command;
  };
  options->inspect = add("inspect", "Show what was saved, when, and with which options");
  options->verify = add("verify", "Read all of it and compare the hashes");
  options->diff = add("diff", "Show the first tensor in which two differ, and where");
  AddFlag(*options->diff, "other", "DIR", options->other, "Another one", ParseFolder)->required();
  options->export_parameters = add("export", "Write the parameters for other programs");
  AddFlag(*options->export_parameters, "--output", "PATH", options->output,
          "The file, or for hf and peft the new folder", ParseFile)
      ->required();
  AddFlag(*options->export_parameters, "--format", "FORMAT", options->format,
          "safetensors, hf (GPT-2, Llama, OPT, GPT-NeoX, ResNet; adapters are merged), peft "
          "(adapters alone) or "
          "torchvision (ResNet) [safetensors]",
          ParseExportFormat);
  AddFlag(*options->export_parameters, "--tokenizer", "FILE", options->tokenizer,
          "Its tokenizer, for hf [where the run had it]", ParseFile);
  AddFlag(*options->export_parameters, "--quantize", "TYPE", options->quantization,
          absl::StrCat("For hf: weights in 4 or 8 bits, as bitsandbytes saves them: ",
                       absl::StrJoin(QuantizationNames(), ", ")),
          ParseQuantizationFlag);
  return {flags, [options] { return RunCheckpoint(*options); }};
}

}  // namespace stagecoach::tools
