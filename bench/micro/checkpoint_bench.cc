// Measures what it costs to save the default network's parameters and optimizer state (1.2 GB),
// compared with one plain file of as many bytes that is synced at its end, as `dd conv=fsync`
// writes it; and to load and hash them. Needs twice as much space on the disk of the folder, 1.2 GB
// of memory, and a minute.
//   build/release/bench/checkpoint_bench [FOLDER]
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/system/system_calls.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/save.h"
#include "engine/checkpoint/shard_files.h"
#include "engine/stagecoach.h"
#include "schedule/generators/generators.h"

namespace stagecoach::bench {
namespace {

using namespace engine;  // NOLINT: a standalone program

constexpr int kTimes = 5;

template <typename F>
double Seconds(F run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The state of the whole network, in memory that has been touched.
class State {
 public:
  State() {
    const Model model = DefaultNetwork(784, 10, 20, 2304).value();
    const ModelProfile profile = AnalyzeModel(model, {}).value();
    task_.files = ShardFilesOf(profile.parameters, Optimizer::AdamW()).value();
    for (const ShardFile& file : task_.files) bytes_ += file.bytes();
    values_.resize(static_cast<size_t>(bytes_) / sizeof(float), 0.5F);
    const float* next = values_.data();
    for (const ShardFile& file : task_.files) {
      task_.owners.push_back(0);
      for (const ShardTensor& tensor : file.tensors) {
        const auto count = static_cast<size_t>(tensor.shape.elements());
        task_.pieces.push_back(
            {tensor.parameter, tensor.state, 0, std::as_bytes(std::span(next, count))});
        next += count;
      }
    }
    task_.manifest.plan.plan = {
        .first_layer = {0}, .num_layers = 20, .schedule = schedule::Generate("gpipe", {}).value()};
  }

  int64_t bytes() const { return bytes_; }

  std::string Save(const std::string& folder, int step) {
    task_.folder = folder;
    task_.id = std::to_string(step);
    task_.manifest.step = step;
    const std::atomic<bool> not_cancelled = false;
    STAGECOACH_CHECK_OK(BeginCheckpoint(base::SystemCalls::Kernel(), task_));
    return WriteCheckpoint(base::SystemCalls::Kernel(), task_, not_cancelled).value();
  }

  void WritePlainly(const std::string& path) const {
    constexpr int64_t kBlock = int64_t{4} << 20;
    auto writer = base::FileWriter::Open(base::SystemCalls::Kernel(), path).value();
    const auto bytes = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values_.data()),
                                           values_.size() * sizeof(float));
    for (size_t at = 0; at < bytes.size(); at += kBlock) {
      STAGECOACH_CHECK_OK(writer.WriteAt(static_cast<int64_t>(at), bytes.subspan(at, kBlock)));
    }
    STAGECOACH_CHECK_OK(writer.Sync());
  }

 private:
  SaveTask task_;
  std::vector<float> values_;
  int64_t bytes_ = 0;
};

void Run(const std::string& folder) {
  State state;
  const double gigabytes = static_cast<double>(state.bytes()) / 1e9;
  std::printf("%.2f GB\n  plain file     checkpoint    ratio     load, hash\n", gigabytes);
  for (int time = 1; time <= kTimes; ++time) {
    const std::string plain = folder + "/plain";
    const double plain_seconds = Seconds([&] { state.WritePlainly(plain); });
    std::filesystem::remove(plain);
    std::string path;
    const double save_seconds = Seconds([&] { path = state.Save(folder, time); });
    const Checkpoint checkpoint = Checkpoint::Open(path).value();
    const double load_seconds = Seconds([&] { STAGECOACH_CHECK_OK(checkpoint.Verify()); });
    std::filesystem::remove_all(path);
    std::printf("%6.2f GB/s    %6.2f GB/s    %4.0f %%    %6.2f GB/s\n", gigabytes / plain_seconds,
                gigabytes / save_seconds, 100 * plain_seconds / save_seconds,
                gigabytes / load_seconds);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace stagecoach::bench

int main(int argc, char** argv) {
  const std::string folder = std::string(argc > 1 ? argv[1] : ".") + "/checkpoint_bench";
  std::filesystem::create_directories(folder);
  stagecoach::bench::Run(folder);
  std::filesystem::remove_all(folder);
  return 0;
}
