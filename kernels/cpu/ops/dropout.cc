#include "kernels/ops/dropout.h"

#include <algorithm>
#include <cstddef>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"

namespace stagecoach::kernels {
namespace {

using base::PhiloxKey;

// The number of blocks of words that are made together. Loops over 16 would be unrolled before they
// could be vectorized, and take twice as long.
constexpr int64_t kLanes = 32;
constexpr int64_t kGroup = 4 * kLanes;  // elements that use them
constexpr int64_t kTile = 32 * kGroup;  // elements of one sample that one tile handles

// Makes words 4 first_block to 4 first_block + kGroup - 1 of a stream.
void MakeWords(PhiloxKey key, uint64_t stream, uint64_t first_block, uint32_t (&words)[kGroup]) {
  uint32_t w0[kLanes], w1[kLanes], w2[kLanes], w3[kLanes];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const base::PhiloxWords counter =
        base::PhiloxCounterOf(stream, first_block + static_cast<uint64_t>(lane));
    w0[lane] = counter.w0;
    w1[lane] = counter.w1;
    w2[lane] = counter.w2;
    w3[lane] = counter.w3;
  }
  for (int round = 0; round < base::kPhiloxRounds; ++round) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      base::PhiloxRound(key, w0[lane], w1[lane], w2[lane], w3[lane]);
    }
    key = base::NextPhiloxKey(key);
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    words[4 * lane] = w0[lane];
    words[4 * lane + 1] = w1[lane];
    words[4 * lane + 2] = w2[lane];
    words[4 * lane + 3] = w3[lane];
  }
}

// Names of extents are those of kernels/ops/dropout.h.
template <typename T>
class CpuDropout final : public DropoutOp {
 public:
  explicit CpuDropout(const DropoutShape& shape)
      : R_(shape.rows),
        E_(shape.elements),
        threshold_(DropoutThreshold(shape.rate)),
        scale_(DropoutScale(shape.rate)),
        tiles_(E_, kTile) {}

  absl::Status Apply(Stream& stream, const DropoutKey& key, const Tensor& x,
                     const Tensor& y) override {
    const int64_t first_sample = key.first_sample == nullptr ? 0 : *key.first_sample;
    const PhiloxKey philox_key = base::PhiloxKeyOf(key.seed);
    const auto sample_blocks = static_cast<uint64_t>((E_ + 3) / 4);
    AsCpu(stream).ParallelFor(static_cast<int>(R_) * tiles_.count, [&](int index, int) {
      const int64_t r = index / tiles_.count;
      const int tile = index % tiles_.count;
      const int64_t end = tiles_.begin(tile) + tiles_.length(tile);
      const uint64_t sample_block = static_cast<uint64_t>(first_sample + r) * sample_blocks;
      for (int64_t e = tiles_.begin(tile); e < end; e += kGroup) {
        uint32_t words[kGroup];
        MakeWords(philox_key, key.stream, sample_block + static_cast<uint64_t>(e / 4), words);
        const T* const from = Elements<T>(x) + r * E_ + e;
        T* const to = Elements<T>(y) + r * E_ + e;
        const int64_t n = std::min(kGroup, end - e);
        for (int64_t i = 0; i < n; ++i) to[i] = words[i] < threshold_ ? 0.0F : from[i] * scale_;
      }
    });
    return absl::OkStatus();
  }

 private:
  const int64_t R_, E_;
  const uint32_t threshold_;
  const float scale_;
  const Tiling tiles_;  // of a sample
};

}  // namespace

absl::StatusOr<std::unique_ptr<DropoutOp>> CreateOnCpu(const DropoutShape& shape, Device& device) {
  if (!IsExtent(shape.rows) || !IsExtent(shape.elements) ||
      !IsExtent(shape.rows * Tiling(shape.elements, kTile).count) || !(shape.rate >= 0.0F) ||
      !(shape.rate < 1.0F)) {
    return absl::InvalidArgumentError(absl::StrCat("dropout: extents must be 1 to ", kMaxExtent,
                                                   " and the rate from 0 to below 1: ", shape.rows,
                                                   " rows, ", shape.elements, " elements, rate ",
                                                   shape.rate));
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<DropoutOp> {
    return std::make_unique<CpuDropout<T>>(shape);
  });
}

}  // namespace stagecoach::kernels
