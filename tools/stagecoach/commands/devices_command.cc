#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/text_table.h"
#include "base/text/units.h"
#include "engine/session/machine/machine.h"
#include "kernels/cuda_backend.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/terminal.h"

namespace stagecoach::tools {
namespace {

using nlohmann::ordered_json;

std::string ComputeCapability(const kernels::CudaGpu& gpu) {
  return absl::StrCat(gpu.compute_major, ".", gpu.compute_minor);
}

// Returns null for an empty text.
ordered_json OrNull(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

// Returns 0 if nothing is known.
int64_t FreeBytes(const kernels::CudaSystem& system, const kernels::CudaGpu& gpu) {
  const absl::StatusOr<kernels::CudaBackend*> backend = kernels::CudaBackend::Load();
  if (!backend.ok()) return 0;
  return (*backend)->FreeBytes(static_cast<int>(&gpu - system.gpus.data())).value_or(0);
}

ordered_json DevicesToJson(const engine::Machine& machine, const kernels::CudaSystem& system) {
  ordered_json devices = ordered_json::array();
  devices.push_back({{"kind", "cpu"},
                     {"processors", machine.processors},
                     {"memory_bytes", machine.memory_bytes},
                     {"available_memory_bytes", machine.available_memory_bytes},
                     {"instruction_set", machine.instruction_set},
                     {"kernels_arch", machine.kernels_arch}});
  for (const kernels::CudaGpu& gpu : system.gpus) {
    devices.push_back({{"kind", "cuda"},
                       {"gpu", &gpu - system.gpus.data()},
                       {"name", gpu.name},
                       {"memory_bytes", gpu.memory_bytes},
                       {"available_memory_bytes", FreeBytes(system, gpu)},
                       {"compute_capability", ComputeCapability(gpu)},
                       {"multiprocessors", gpu.multiprocessors},
                       {"bus_id", gpu.bus_id}});
  }
  return devices;
}

void PrintJson(const engine::Machine& machine, const kernels::CudaSystem& system) {
  const ordered_json cuda = {{"usable", system.usable.ok()},
                             {"reason", OrNull(std::string(system.usable.message()))},
                             {"backend", OrNull(system.backend_path)},
                             {"driver", OrNull(system.driver)},
                             {"runtime", OrNull(system.runtime)},
                             {"cublaslt", OrNull(system.cublaslt)},
                             {"cudnn", OrNull(system.cudnn)},
                             {"no_cudnn", OrNull(system.no_cudnn)},
                             {"nccl", OrNull(system.nccl)}};
  PrintJsonLine({{"devices", DevicesToJson(machine, system)}, {"cuda", cuda}});
}

void PrintCpu(const engine::Machine& machine) {
  using Align = base::TextTable::Align;
  base::TextTable table({{"kind", Align::kLeft},
                         {"processors", Align::kRight},
                         {"memory", Align::kRight},
                         {"available", Align::kRight},
                         {"instruction set", Align::kLeft},
                         {"kernels for", Align::kLeft}});
  table.AddRow({"cpu", absl::StrCat(machine.processors), base::FormatBytes(machine.memory_bytes),
                base::FormatBytes(machine.available_memory_bytes), machine.instruction_set,
                machine.kernels_arch});
  absl::PrintF(
      "%s\n"
      "A CPU device is a thread with a memory budget: any number of stages can be trained here.\n"
      "Up to %d devices of one thread each compute at the same time.\n",
      table.ToString(TerminalColumns()), machine.processors);
}

std::string GpuTable(const kernels::CudaSystem& system) {
  using Align = base::TextTable::Align;
  base::TextTable table({{"kind", Align::kLeft},
                         {"GPU", Align::kRight},
                         {"name", Align::kLeft},
                         {"memory", Align::kRight},
                         {"available", Align::kRight},
                         {"compute capability", Align::kRight},
                         {"multiprocessors", Align::kRight},
                         {"bus", Align::kLeft}});
  for (const kernels::CudaGpu& gpu : system.gpus) {
    table.AddRow({"cuda", absl::StrCat(&gpu - system.gpus.data()), gpu.name,
                  base::FormatBytes(gpu.memory_bytes), base::FormatBytes(FreeBytes(system, gpu)),
                  ComputeCapability(gpu), absl::StrCat(gpu.multiprocessors), gpu.bus_id});
  }
  return table.ToString(TerminalColumns());
}

void PrintCuda(const kernels::CudaSystem& system) {
  if (system.usable.ok()) {
    absl::PrintF("\n%s\n", GpuTable(system));
  } else {
    absl::PrintF("\nNo CUDA devices: %s.\n", system.usable.message());
  }
  if (system.backend_path.empty()) return;
  const auto or_none = [](const std::string& version) {
    return version.empty() ? std::string("none") : version;
  };
  absl::PrintF("CUDA runtime %s, cuBLASLt %s, NCCL %s; driver: %s\nCUDA backend: %s\n",
               or_none(system.runtime), or_none(system.cublaslt), or_none(system.nccl),
               or_none(system.driver), system.backend_path);
  if (system.cudnn.empty()) {
    absl::PrintF(
        "Attention: kernels of the backend (no cuDNN: %s)\nConvolutions: none but of kernel 1, "
        "until cuDNN 9.19 or a later 9 is installed\n",
        system.no_cudnn);
  } else {
    absl::PrintF(
        "Attention: kernels of the backend or of cuDNN %s, whichever are measured faster\n"
        "Convolutions: cuDNN %s\n",
        system.cudnn, system.cudnn);
  }
}

// If not even the backend can be loaded, that is the reason why nothing is usable.
kernels::CudaSystem InspectCuda() {
  const absl::StatusOr<kernels::CudaBackend*> backend = kernels::CudaBackend::Load();
  if (backend.ok()) return (*backend)->Inspect();
  kernels::CudaSystem system;
  system.usable = backend.status();
  return system;
}

}  // namespace

Command AddDevicesCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("devices", "Show what this machine can train on");
  const auto json = std::make_shared<bool>(false);
  flags->add_flag("--json", *json, "Print one JSON object");
  return {flags, [json]() -> absl::StatusOr<int> {
            const engine::Machine machine = engine::InspectMachine();
            const kernels::CudaSystem system = InspectCuda();
            if (*json) {
              PrintJson(machine, system);
            } else {
              PrintCpu(machine);
              PrintCuda(system);
            }
            return kExitOk;
          }};
}

}  // namespace stagecoach::tools
