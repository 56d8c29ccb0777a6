// Measures the default network (97.5 million parameters) on GPUs, compared with what the GPU can do
// in the same run: whole steps with the rate of the largest product, AdamW and LayerNorm with
// copies, and four stages on one GPU with one stage; also both ends of GPT-2, attention, the time
// of a token in text generation, and products of few rows with quantized weights. Prints a table,
// or JSON; takes about a minute.
//   build/release/bench/cuda_bench [--small] [--json] [--tuning FILE] [step] [kernels] [stages]
//     [tokens] [attention] [generate] [quantized]
#include "bench/cuda/cuda_bench.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace stagecoach::bench {

DeviceSpec OnGpu(const Settings& settings, Precision precision, int devices) {
  return {.kind = DeviceKind::kCuda,
          .precision = precision,
          .gpus = std::vector<int>(static_cast<size_t>(devices), 0),
          .tuning_file = settings.tuning_file};
}

void Report(const Settings& settings, const std::string& id, const std::string& name, double value,
            const std::string& unit, const Target& target) {
  if (settings.json) {
    nlohmann::ordered_json line = {{"id", id}, {"name", name}, {"value", value}, {"unit", unit}};
    if (target.side != Target::kNone) {
      line["target"] = target.ToString();
      line["met"] = target.MetBy(value);
    }
    std::printf("%s\n", line.dump().c_str());
  } else {
    std::printf("%-66s %10.3f %-8s %s\n", name.c_str(), value, unit.c_str(),
                target.side == Target::kNone ? "" : ("target " + target.ToString()).c_str());
  }
  std::fflush(stdout);
}

double BenchCopy(const Settings& settings, engine::DeviceTimer& timer) {
  const int64_t bytes = settings.sizes.copy_bytes;
  const Tensor from = Value(timer.Random(Shape{bytes / 4}, DType::kFloat32));
  const Tensor to = Value(timer.Random(Shape{bytes / 4}, DType::kFloat32));
  const double seconds = Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int) {
    return stream.Copy(to.data, from.data, bytes);
  }));
  Report(settings, "copy", "copy on the device, bytes read and written",
         Gigabytes(2 * bytes, seconds), "GB/s");
  return 2.0 * static_cast<double>(bytes) / seconds;
}

void ReportMoved(const Settings& settings, double copy_rate, const Moved& moved) {
  Report(settings, moved.id, moved.name, Gigabytes(moved.bytes, moved.seconds), "GB/s");
  Report(settings, absl::StrCat(moved.id, "_of_copy"), absl::StrCat("  ", moved.name, " / copy"),
         static_cast<double>(moved.bytes) / moved.seconds / copy_rate, "",
         {Target::kAtLeast, 0.85});
}

namespace {

// Returns sizes that only serve to run every line where GPUs are emulated.
Sizes SmallSizes() {
  return {.layers = 4,
          .width = 32,
          .batch = 16,
          .micro_batch_rows = {4},
          .norm_rows = 8,
          .norms = {{8, 64}},
          .gates = {8, 64},
          .positions = 70,
          .copy_bytes = 4096,
          .head_rows = {8},
          .vocabularies = {57, 64},
          .embedding_rows = 100,
          .token_width = 8,
          .generating_blocks = 2,
          .context = 40,
          .generated_positions = {8, 30},
          .quantized = {{64, 96}},
          .quantized_weights = 2,
          .attention = {{.samples = 1, .positions = 9, .heads = 2, .kv_heads = 2, .head_size = 64}},
          .steps = 2,
          .repetitions = 2};
}

int Run(int argc, char** argv) {
  CLI::App app("Benchmarks of the CUDA backend");
  Settings settings;
  bool small = false;
  const std::vector<std::string> all = {"step",      "kernels",  "stages",   "tokens",
                                        "attention", "generate", "quantized"};
  std::vector<std::string> sections = all;
  app.add_flag("--small", small, "Tiny sizes, whose figures are meaningless");
  app.add_flag("--json", settings.json, "Print one JSON object per line");
  app.add_option("--tuning", settings.tuning_file, "Where choices of algorithms are kept");
  app.add_option("sections", sections,
                 "step, kernels, stages, tokens, attention, generate, quantized")
      ->check(CLI::IsMember(all));
  CLI11_PARSE(app, argc, argv);
  if (small) settings.sizes = SmallSizes();
  for (const std::string& section : sections) {
    if (section == "step") BenchSteps(settings);
    if (section == "kernels") BenchKernels(settings);
    if (section == "stages") BenchStages(settings);
    if (section == "tokens") BenchTokens(settings);
    if (section == "generate") BenchGenerate(settings);
    if (section == "quantized") BenchQuantized(settings);
    if (section == "attention") BenchAttention(settings);
  }
  return 0;
}

}  // namespace
}  // namespace stagecoach::bench

int main(int argc, char** argv) { return stagecoach::bench::Run(argc, argv); }
