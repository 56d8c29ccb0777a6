#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/tuning/tuning_table.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/cuda/blas_lt_fixture.h"
#include "tests/testing/status_matchers.h"

// The choice among attention's kernels. attention_tiled_test.cc tests what each computes.
namespace stagecoach::kernels::attention_choice_test {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

struct OfStep {
  const char* name;
  std::span<const AttentionTile> tiles, tiles_of_warpgroups;

  std::vector<AttentionTile> all() const {
    std::vector<AttentionTile> all(tiles.begin(), tiles.end());
    all.insert(all.end(), tiles_of_warpgroups.begin(), tiles_of_warpgroups.end());
    return all;
  }
};
const std::vector<OfStep>& Steps() {
  static const auto& steps = *new std::vector<OfStep>{
      {"attention forward", AttentionForwardTiles(), {}},
      {"attention dk dv", AttentionKeyTiles(), AttentionKeyTilesOfWarpgroups()},
      {"attention dq", AttentionQueryTiles(), AttentionQueryTilesOfWarpgroups()}};
  return steps;
}

Choice ChoiceOf(const AttentionTile& tile) {
  Choice choice = {{"rows", tile.rows}, {"step", tile.step}, {"warps", tile.warps}};
  if (tile.stages > 0) choice["stages"] = tile.stages;
  return choice;
}

// Returns the text between the step and the model in keys and reports.
std::string Work(const OfStep& step, const AttentionShape& shape) {
  return absl::StrCat(
      step.name, " bf16 ", shape.samples, "x", shape.positions, ", ", shape.heads, " of ",
      shape.kv_heads, " heads x ", shape.head_size, shape.rotary_base > 0.0F ? ", rotary" : "",
      shape.window > 0 ? absl::StrCat(", window ", shape.window) : "",
      shape.has_documents ? ", documents" : "", shape.score_cap > 0.0F ? ", capped" : "");
}

std::string Told(const OfStep& step, const AttentionShape& shape, const Choice& choice) {
  return absl::StrCat(Work(step, shape),
                      ", on CUDA stand-in, 4 multiprocessors: ", ToString(choice));
}

class AttentionChoice : public BlasLtTest {
 protected:
  static std::unique_ptr<Device> CreateDevice(const std::string& file, int gpu = 0,
                                              Precision precision = Precision::kBfloat16) {
    auto device = Backend().CreateDevice({.gpu = gpu, .precision = precision, .tuning_file = file});
    STAGECOACH_CHECK_OK(device);
    return *std::move(device);
  }
  // Returns what a device reports of attention once it has the operation.
  static std::vector<std::string> Choices(Device& device, const AttentionShape& shape) {
    STAGECOACH_CHECK_OK(device.ops().Create(shape));
    std::vector<std::string> attention;
    for (std::string& text : device.choices()) {
      if (absl::StartsWith(text, "attention ")) attention.push_back(std::move(text));
    }
    return attention;
  }
  // Writes a file with this choice for the step, and the first ones for the others.
  void Write(const AttentionShape& shape, const OfStep& written, const Choice& choice) const {
    nlohmann::json choices;
    for (const OfStep& step : Steps()) {
      choices["CUDA stand-in, 4 multiprocessors, " + Work(step, shape)] =
          step.name == written.name ? choice : ChoiceOf(step.tiles[0]);
    }
    WriteTuning({{"format", "stagecoach-tuning"}, {"version", 2}, {"choices", choices}});
  }
  // Returns y, statistics and dqkv.
  static absl::StatusOr<std::vector<std::byte>> Compute(Device& device,
                                                        const AttentionShape& shape);

  const AttentionShape shape_ = {.positions = 17, .heads = 2, .head_size = 64};
};

absl::StatusOr<std::vector<std::byte>> AttentionChoice::Compute(Device& device,
                                                                const AttentionShape& shape) {
  ASSIGN_OR_RETURN(const std::unique_ptr<AttentionOp> op, device.ops().Create(shape));
  const int64_t rows = shape.samples * shape.positions;
  const int64_t outputs = rows * shape.heads * shape.head_size;
  const int64_t packed = outputs + 2 * rows * shape.kv_heads * shape.head_size;
  std::vector<uint16_t> numbers;
  for (int64_t i = 0; i < packed + outputs; ++i) {
    numbers.push_back(ToBfloat16(2.0F * std::sin(static_cast<float>(i))));
  }
  // qkv, dy, y, dqkv, statistics
  const int64_t in_bytes = 2 * (packed + outputs);
  const int64_t out_bytes = in_bytes + 4 * rows * shape.heads;
  ASSIGN_OR_RETURN(const Buffer memory, device.Allocate(in_bytes + out_bytes));
  ASSIGN_OR_RETURN(const Buffer workspace, device.Allocate(op->workspace_bytes()));
  ASSIGN_OR_RETURN(const HostBuffer host, device.AllocateHost(out_bytes));
  std::memcpy(host.data(), numbers.data(), static_cast<size_t>(in_bytes));
  std::byte* next = memory.data();
  const auto take = [&](DType type, int64_t elements) {
    const Tensor tensor{std::exchange(next, next + elements * SizeOf(type)), type, {elements}};
    return tensor;
  };
  const Tensor qkv = take(DType::kBfloat16, packed), dy = take(DType::kBfloat16, outputs);
  const Tensor y = take(DType::kBfloat16, outputs), dqkv = take(DType::kBfloat16, packed);
  const Tensor statistics = take(DType::kFloat32, rows * shape.heads);
  RETURN_IF_ERROR(RunJob(device, [&](Stream& stream) -> absl::Status {
    RETURN_IF_ERROR(stream.CopyFromHost(qkv.data, host.data(), in_bytes));
    RETURN_IF_ERROR(op->Forward(stream, qkv, /*documents=*/{}, statistics, y, workspace.data()));
    RETURN_IF_ERROR(op->BackwardInput(stream, dy, qkv, /*documents=*/{}, y, statistics, dqkv,
                                      workspace.data()));
    RETURN_IF_ERROR(stream.CopyToHost(host.data(), y.data, out_bytes));
    return stream.Finish(base::Deadline::After(absl::Minutes(1)), [] { return absl::OkStatus(); });
  }));
  return std::vector<std::byte>(host.data(), host.data() + out_bytes);
}

TEST_F(AttentionChoice, IsTheFirstWhereNothingIsMeasured) {
  const auto device = CreateDevice("");
  const std::vector<std::string> choices = Choices(*device, shape_);
  EXPECT_THAT(choices, SizeIs(Steps().size()));
  for (const OfStep& step : Steps()) {
    EXPECT_THAT(choices, Contains(Told(step, shape_, ChoiceOf(step.tiles[0]))));
  }
}

TEST_F(AttentionChoice, IsNoneWhereThereIsOneSetOfKernels) {
  for (const std::string& file : {std::string(), tuning_file()}) {
    const auto device = CreateDevice(file);
    EXPECT_THAT(Choices(*device, {.positions = 9, .head_size = 8}), SizeIs(0));
    const auto other = CreateDevice(file, 0, Precision::kFloat32);
    EXPECT_THAT(Choices(*other, shape_), SizeIs(0));
  }
}

TEST_F(AttentionChoice, IsMeasuredOnceAndKept) {
  AttentionShape turned = shape_;
  turned.rotary_base = 10000.0F;
  std::vector<std::string> first;
  for (int gpu = 0; gpu < 2; ++gpu) {
    const auto device = CreateDevice(tuning_file(), gpu);
    Choices(*device, shape_);
    const std::vector<std::string> choices = Choices(*device, turned);
    EXPECT_THAT(choices, SizeIs(2 * Steps().size()));
    for (const OfStep& step : Steps()) {
      EXPECT_THAT(choices, Contains(StartsWith(Work(step, turned) + ", on ")));
    }
    if (gpu == 0) first = choices;
    EXPECT_EQ(choices, first);
  }
  EXPECT_THAT(ReadTuning()["choices"], SizeIs(2 * Steps().size()));
}

// Each with its own key, but for a scale, and a window that all positions are within.
TEST_F(AttentionChoice, IsMeasuredForEachRestriction) {
  AttentionShape capped = shape_, with_window = shape_, with_documents = shape_;
  capped.score_cap = 30.0F;
  with_window.window = 5;
  with_documents.has_documents = true;
  const auto device = CreateDevice(tuning_file());
  for (const AttentionShape& shape : {shape_, capped, with_window, with_documents}) {
    const std::vector<std::string> choices = Choices(*device, shape);
    for (const OfStep& step : Steps()) {
      EXPECT_THAT(choices, Contains(StartsWith(Work(step, shape) + ", on ")));
    }
  }
  AttentionShape scaled = shape_, with_wide_window = shape_;
  scaled.scale = 0.5F;
  with_wide_window.window = shape_.positions;
  Choices(*device, scaled);
  EXPECT_THAT(Choices(*device, with_wide_window), SizeIs(4 * Steps().size()));
}

TEST_F(AttentionChoice, IsWhatTheFileSays) {
  StartMachine({.gpus = 1, .cudnn_version = 0});
  const AttentionShape shape = {.positions = 130, .heads = 2, .head_size = 64};
  std::set<std::vector<std::byte>> of_forward;
  for (const OfStep& step : Steps()) {
    for (const AttentionTile& tile : step.all()) {
      if (tile.head_size != shape.head_size) continue;
      Write(shape, step, ChoiceOf(tile));
      const auto device = CreateDevice(tuning_file());
      EXPECT_THAT(Choices(*device, shape), Contains(Told(step, shape, ChoiceOf(tile))));
      ASSERT_OK_AND_ASSIGN(const std::vector<std::byte> bytes, Compute(*device, shape));
      if (step.name == Steps()[0].name) of_forward.insert(bytes);
    }
  }
  EXPECT_GT(of_forward.size(), 1U) << "other sums have other bits";
}

// Kernels by warpgroups know no windows, documents or caps.
TEST_F(AttentionChoice, IsOneThatKnowsTheRestrictions) {
  AttentionShape restricted = shape_;
  restricted.window = 5;
  const OfStep& step = Steps()[1];
  const Choice unable = ChoiceOf(step.tiles_of_warpgroups[0]);
  Write(restricted, step, unable);
  EXPECT_THAT(Choices(*CreateDevice(tuning_file()), restricted),
              Not(Contains(Told(step, restricted, unable))));
}

TEST_F(AttentionChoice, IsMeasuredAnewIfItIsNotThere) {
  const OfStep& step = Steps()[0];
  Write(shape_, step, {{"rows", 4711}});
  EXPECT_THAT(Choices(*CreateDevice(tuning_file()), shape_),
              Contains(StartsWith(Work(step, shape_) + ", on ")));
  EXPECT_THAT(ReadTuning().dump(), Not(HasSubstr("4711")));
}

TEST_F(AttentionChoice, IsOneThatTheGpuHasTheSharedMemoryFor) {
  const OfStep& step = Steps()[0];
  unsigned most = 0;
  Choice largest;
  for (const AttentionTile& tile : step.tiles) {
    if (tile.head_size != shape_.head_size || tile.shared_bytes <= most) continue;
    most = tile.shared_bytes;
    largest = ChoiceOf(tile);
  }
  StartMachine({.gpus = 1, .shared_bytes = static_cast<int>(most) - 1});
  Write(shape_, step, largest);
  EXPECT_THAT(Choices(*CreateDevice(tuning_file()), shape_),
              Not(Contains(Told(step, shape_, largest))));
}

TEST_F(AttentionChoice, NeedsMemoryToMeasureWith) {
  StartMachine({.gpus = 1, .memory_bytes = 1 << 20});
  const auto device = CreateDevice(tuning_file());
  EXPECT_THAT(
      device->ops().Create(AttentionShape{.positions = 4096, .head_size = 64}),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("attention forward bf16 1x4096")));
}

}  // namespace
}  // namespace stagecoach::kernels::attention_choice_test
