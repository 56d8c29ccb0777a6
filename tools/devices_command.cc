#include "tools/devices_command.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text_table.h"
#include "base/units.h"
#include "tools/exit_status.h"
#include "tools/machine.h"

namespace stagecoach::tools {
namespace {

void PrintJson(const Machine& machine) {
  const nlohmann::ordered_json cpu = {
      {"kind", "cpu"},
      {"processors", machine.processors},
      {"memory_bytes", machine.memory_bytes},
      {"available_memory_bytes", machine.available_memory_bytes},
      {"instruction_set", machine.instruction_set},
  };
  absl::PrintF("%s\n", nlohmann::ordered_json{{"devices", {cpu}}}.dump());
}

void PrintText(const Machine& machine) {
  using Align = base::TextTable::Align;
  base::TextTable table({{"kind", Align::kLeft},
                         {"processors", Align::kRight},
                         {"memory", Align::kRight},
                         {"available", Align::kRight},
                         {"instruction set", Align::kLeft}});
  table.AddRow({"cpu", absl::StrCat(machine.processors), base::FormatBytes(machine.memory_bytes),
                base::FormatBytes(machine.available_memory_bytes), machine.instruction_set});
  absl::PrintF(
      "%s\n"
      "A CPU device is a thread with a memory budget: any number of stages can be trained here.\n"
      "Up to %d devices of one thread each compute at the same time.\n",
      table.ToString(), machine.processors);
}

}  // namespace

Command AddDevicesCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("devices", "Show what this machine can train on");
  const auto json = std::make_shared<bool>(false);
  flags->add_flag("--json", *json, "Print one JSON object");
  return {flags, [json]() -> absl::StatusOr<int> {
            const Machine machine = InspectMachine();
            *json ? PrintJson(machine) : PrintText(machine);
            return kExitOk;
          }};
}

}  // namespace stagecoach::tools
