#ifndef STAGECOACH_ENGINE_DATA_RANDOM_SAMPLES_H_
#define STAGECOACH_ENGINE_DATA_RANDOM_SAMPLES_H_

#include <cstdint>
#include <vector>

#include "engine/data/dataset.h"

namespace stagecoach::engine {

// Samples of any form, to measure how long they take: numbers uniform in [-1, 1), ids uniform over
// the vocabulary, labels that cycle through all classes, and targets of 0 if those are numbers. The
// same spec and number of rows yield the same samples.
class RandomSamples final : public Dataset {
 public:
  // `spec` has one input, of float32 or int32.
  RandomSamples(SampleSpec spec, int64_t rows);

  int64_t rows() const override { return rows_; }

 private:
  void ReadInput(int i, int64_t row, std::byte* out) const override;
  void ReadTarget(int64_t row, std::byte* out) const override;

  const int64_t rows_;
  std::vector<float> numbers_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> labels_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_RANDOM_SAMPLES_H_
