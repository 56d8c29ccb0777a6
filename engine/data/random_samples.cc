#include "engine/data/random_samples.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/types/span.h"
#include "base/random.h"

namespace stagecoach::engine {
namespace {

std::vector<int32_t> RandomIds(size_t count, int64_t vocabulary) {
  std::vector<float> shares(count);
  base::RandomStream(1, 1).FillUniform(0.0F, 1.0F, absl::MakeSpan(shares));
  std::vector<int32_t> ids;
  for (const float share : shares) {
    const auto id = static_cast<int64_t>(share * static_cast<float>(vocabulary));
    ids.push_back(static_cast<int32_t>(std::min(id, vocabulary - 1)));
  }
  return ids;
}

}  // namespace

RandomSamples::RandomSamples(SampleSpec of, int64_t rows) : Dataset(std::move(of)), rows_(rows) {
  const TensorSpec& input = spec().inputs.front();
  const auto values = static_cast<size_t>(rows * input.shape.elements());
  if (input.has_ids()) {
    ids_ = RandomIds(values, input.vocabulary);
  } else {
    numbers_.resize(values);
    base::RandomStream(1, 1).FillUniform(-1.0F, 1.0F, absl::MakeSpan(numbers_));
  }
  const TargetSpec& target = spec().target;
  // A label and a number of 0 are the same bytes.
  labels_.resize(static_cast<size_t>(rows * target.shape.elements()));
  for (size_t i = 0; i < labels_.size() && target.classes > 0; ++i) {
    labels_[i] = static_cast<int32_t>(static_cast<int64_t>(i) % target.classes);
  }
}

void RandomSamples::ReadInput(int /*i*/, int64_t row, std::byte* out) const {
  const TensorSpec& input = spec().inputs.front();
  const int64_t first = row * input.shape.elements();
  const void* const from = input.has_ids() ? static_cast<const void*>(ids_.data() + first)
                                           : static_cast<const void*>(numbers_.data() + first);
  std::memcpy(out, from, static_cast<size_t>(input.bytes()));
}

void RandomSamples::ReadTarget(int64_t row, std::byte* out) const {
  std::memcpy(out, labels_.data() + row * spec().target.shape.elements(),
              static_cast<size_t>(spec().target.bytes()));
}

}  // namespace stagecoach::engine
