#include "engine/data/feed.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "engine/runtime/device/device_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;

constexpr int64_t kFeatures = 5;
constexpr int64_t kRowsOfData = 64;
constexpr int64_t kIds = 1000 * kRowsOfData;
constexpr int64_t kMicroBatchRows = 3;
constexpr int kMicroBatches = 4;
constexpr int64_t kBatchRows = kMicroBatchRows * kMicroBatches;
const TargetSpec kTarget = TargetSpec::ClassLabel(kRowsOfData);
const int64_t kLossBytes = BytesOfTargets(kTarget, kMicroBatchRows);

// A data set of numbers or ids that tell where they come from; counts what is read.
class CountingData final : public Dataset {
 public:
  explicit CountingData(bool has_ids, int64_t features = kFeatures)
      : Dataset({.inputs = {{.name = "features",
                             .type = has_ids ? DType::kInt32 : DType::kFloat32,
                             .shape = Shape{features}}},
                 .target = TargetSpec::ClassLabel(kRowsOfData)}) {}

  int64_t rows() const override { return kRowsOfData; }

  static float Value(int64_t row, int64_t feature) {
    return static_cast<float>(row) + static_cast<float>(feature) / 7.0F;
  }

  static int32_t Id(int64_t row, int64_t feature) {
    return static_cast<int32_t>(1000 * row + feature);
  }

  mutable std::atomic<int64_t> reads = 0;
  std::function<void()> on_read = [] {};

 private:
  void ReadInput(int /*i*/, int64_t row, std::byte* out) const override {
    ++reads;
    on_read();
    for (int64_t i = 0; i < features(); ++i) {
      const float value = Value(row, i);
      const int32_t id = Id(row, i);
      const void* const from =
          spec().inputs.front().has_ids() ? static_cast<const void*>(&id) : &value;
      std::memcpy(out + 4 * i, from, 4);
    }
  }
  void ReadTarget(int64_t row, std::byte* out) const override {
    const auto label = static_cast<int32_t>(row);
    std::memcpy(out, &label, sizeof(label));
  }
};

// The inputs that a device received in one run.
struct Fed {
  std::vector<float> features;  // ids as well; each is exact as a float
  std::vector<int32_t> labels;
  std::vector<kernels::LossTerms> terms;  // by micro-batch
};

// A feed of one GPU, and memory for a whole batch there.
class Feeding {
 public:
  Feeding(Precision precision, bool has_ids, int64_t features = kFeatures)
      : device_(MakeDevice({.kind = DeviceKind::kCuda, .precision = precision}, 0).value()),
        type_(has_ids ? DType::kInt32 : device_->activation_type()),
        features_(device_->Allocate(kBatchRows * features * SizeOf(type_)).value()),
        loss_(device_->Allocate(kMicroBatches * kLossBytes).value()),
        host_(device_->AllocateHost(features_.bytes() + loss_.bytes()).value()),
        feed_(Feed::Create(*device_, {.micro_batch_rows = kMicroBatchRows,
                                      .micro_batches = kMicroBatches,
                                      .features = features,
                                      .vocabulary = has_ids ? kIds : 0,
                                      .feeds_loss = true,
                                      .target = kTarget})
                  .value()),
        ahead_(device_->Allocate(kMicroBatches * feed_.feature_bytes()).value()) {
    feed_.PlaceAhead(ahead_.data());
    feed_.PlaceTargets(loss_.data());
  }

  Fed Run(const Batch& batch, const Batch& next) {
    kernels::Stream& stream = device_->stream();
    stream.Run([&] {
      for (int i = 0; i < kMicroBatches; ++i) {
        const Tensor x{features_.data() + i * features_.bytes() / kMicroBatches, type_,
                       Shape{kMicroBatchRows, features_.bytes() / SizeOf(type_) / kBatchRows}};
        EXPECT_OK(feed_.Features(batch, i, x));
        EXPECT_OK(feed_.Loss(batch, i));
      }
      EXPECT_OK(stream.CopyToHost(host_.data(), features_.data(), features_.bytes()));
      EXPECT_OK(stream.CopyToHost(host_.data() + features_.bytes(), loss_.data(), loss_.bytes()));
      for (int i = 0; i < kMicroBatches; ++i) EXPECT_OK(feed_.Release());
      EXPECT_OK(feed_.Prepare(next));
      EXPECT_OK(stream.Finish(base::Deadline::Never(), [] { return absl::OkStatus(); }));
    });
    return Read();
  }

 private:
  Fed Read() const {
    Fed fed{.features = std::vector<float>(static_cast<size_t>(features_.bytes() / SizeOf(type_))),
            .labels = std::vector<int32_t>(kBatchRows),
            .terms = std::vector<kernels::LossTerms>(kMicroBatches)};
    const std::byte* from = host_.data();
    for (float& value : fed.features) {
      if (type_ == DType::kInt32) {
        int32_t id;
        std::memcpy(&id, from, sizeof(id));
        value = static_cast<float>(id);
      } else if (type_ == DType::kFloat32) {
        std::memcpy(&value, from, sizeof(value));
      } else {
        uint16_t rounded;
        std::memcpy(&rounded, from, sizeof(rounded));
        value = kernels::FromBfloat16(rounded);
      }
      from += SizeOf(type_);
    }
    for (int i = 0; i < kMicroBatches; ++i) {
      const auto offset = [&](const void* address) {
        return static_cast<const std::byte*>(address) - loss_.data();
      };
      std::memcpy(fed.labels.data() + i * kMicroBatchRows, from + offset(feed_.TargetsOf(i).data),
                  kMicroBatchRows * sizeof(int32_t));
      std::memcpy(&fed.terms[static_cast<size_t>(i)], from + offset(feed_.TermsOf(i)),
                  sizeof(kernels::LossTerms));
    }
    return fed;
  }

  const std::unique_ptr<kernels::Device> device_;
  const DType type_;
  const kernels::Buffer features_, loss_;
  const kernels::HostBuffer host_;
  Feed feed_;
  const kernels::Buffer ahead_;
};

class CudaFeed : public ::testing::TestWithParam<std::tuple<Precision, bool>> {
 protected:
  Precision precision() const { return std::get<0>(GetParam()); }
  bool has_ids() const { return std::get<1>(GetParam()); }
  float Expected(int64_t row, int64_t feature) const {
    if (has_ids()) return static_cast<float>(CountingData::Id(row, feature));
    const float value = CountingData::Value(row, feature);
    return precision() == Precision::kBfloat16 ? kernels::FromBfloat16(kernels::ToBfloat16(value))
                                               : value;
  }
  void ExpectIs(const Fed& fed, const std::vector<int64_t>& rows) const {
    for (int i = 0; i < kMicroBatches; ++i) {
      EXPECT_EQ(fed.terms[static_cast<size_t>(i)], Batch{.rows = rows}.TermsOf(i, kMicroBatchRows));
    }
    for (size_t i = 0; i < static_cast<size_t>(kBatchRows); ++i) {
      const bool pads = i >= rows.size();
      if (!pads) {
        EXPECT_EQ(fed.labels[i], rows[i]) << i;
      }
      for (int64_t j = 0; j < kFeatures; ++j) {
        EXPECT_EQ(fed.features[i * kFeatures + static_cast<size_t>(j)],
                  pads ? 0.0F : Expected(rows[i], j))
            << i << ", " << j;
      }
    }
  }

  const CountingData data_{has_ids()};
  Feeding feeding_{precision(), has_ids()};
};

TEST_P(CudaFeed, APreparedBatchIsReadOnce) {
  const std::vector<int64_t> first = Rows(0, kBatchRows), second = Rows(20, kBatchRows);
  ExpectIs(feeding_.Run({&data_, first}, {&data_, second}), first);
  EXPECT_EQ(data_.reads, 2 * kBatchRows);
  ExpectIs(feeding_.Run({&data_, second}, {}), second);
  EXPECT_EQ(data_.reads, 2 * kBatchRows);
}

TEST_P(CudaFeed, OfAnotherDataSetNothingIsPrepared) {
  const CountingData other(has_ids());
  const std::vector<int64_t> rows = Rows(0, kBatchRows);
  feeding_.Run({&data_, rows}, {&data_, rows});
  ExpectIs(feeding_.Run({&other, rows}, {}), rows);
  EXPECT_EQ(other.reads, kBatchRows);
}

TEST_P(CudaFeed, APreparedBatchServesOneRun) {
  const std::vector<int64_t> rows = Rows(0, kBatchRows);
  feeding_.Run({&data_, rows}, {&data_, rows});
  feeding_.Run({&data_, rows}, {});
  data_.reads = 0;
  feeding_.Run({&data_, rows}, {});
  EXPECT_EQ(data_.reads, kBatchRows) << "the data may have changed since";
}

// Runs are whole or not, and their batches were announced, or not, or others were.
TEST_P(CudaFeed, GivesTheRowsAskedForWhateverWasAnnounced) {
  std::mt19937 random(7);
  const auto any_rows = [&](bool whole) {
    std::vector<int64_t> rows(whole ? kBatchRows : random() % (kBatchRows + 1));
    for (int64_t& row : rows) row = static_cast<int64_t>(random() % kRowsOfData);
    return rows;
  };
  std::vector<int64_t> rows = any_rows(true);
  for (int run = 0; run < 60; ++run) {
    const std::vector<int64_t> announced = any_rows(true);
    const bool announces = random() % 3 > 0;
    const Batch next{announces ? &data_ : nullptr, announced};
    ExpectIs(feeding_.Run({&data_, rows}, next), rows);
    rows = random() % 3 > 0 ? announced : any_rows(random() % 2 > 0);
    if (random() % 4 == 0) rows.resize(random() % (rows.size() + 1));
  }
}

// Every read waits until another thread reads as well.
TEST(CudaFeedOfManyBytes, IsGatheredBySeveralThreads) {
  if (base::AvailableCpus() < 2) GTEST_SKIP() << "there is one CPU";
  constexpr int64_t kManyFeatures = 128 << 10;
  CountingData data(/*has_ids=*/false, kManyFeatures);
  std::mutex mutex;
  std::condition_variable changed;
  std::set<std::thread::id> readers;
  data.on_read = [&] {
    std::unique_lock lock(mutex);
    readers.insert(std::this_thread::get_id());
    changed.notify_all();
    EXPECT_TRUE(
        changed.wait_for(lock, std::chrono::seconds(20), [&] { return readers.size() > 1; }));
  };
  Feeding feeding(Precision::kBfloat16, /*has_ids=*/false, kManyFeatures);
  const std::vector<int64_t> first = Rows(3, kBatchRows), second = Rows(20, kBatchRows - 4);
  for (const std::vector<int64_t>& rows : {first, second}) {
    readers.clear();
    const Fed fed = feeding.Run({&data, rows}, {&data, second});
    for (size_t i = 0; i < fed.features.size(); ++i) {
      const size_t row = i / kManyFeatures;
      const float value =
          row < rows.size()
              ? CountingData::Value(rows[row], static_cast<int64_t>(i) % kManyFeatures)
              : 0.0F;
      ASSERT_EQ(fed.features[i], kernels::FromBfloat16(kernels::ToBfloat16(value))) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, CudaFeed,
                         ::testing::Combine(::testing::Values(Precision::kFloat32,
                                                              Precision::kBfloat16),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return absl::StrCat(kernels::PrecisionName(std::get<0>(test.param)),
                                               std::get<1>(test.param) ? "_ids" : "");
                         });

}  // namespace
}  // namespace stagecoach::engine
