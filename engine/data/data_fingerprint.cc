#include "engine/data/data_fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/hash.h"
#include "engine/data/sample_spec.h"

namespace stagecoach::engine {
namespace {

// Returns the stride at which the visited ones of `count` rows of that size make up at most
// `most_bytes`.
int64_t StrideOf(int64_t count, int64_t bytes, int64_t most_bytes) {
  return std::max<int64_t>(1, (count * bytes + most_bytes - 1) / most_bytes);
}

// Adds each `stride`-th row from `first` on.
void AddRows(const Dataset& set, int64_t first, int64_t stride, base::Hasher& hasher) {
  const SampleSpec& spec = set.spec();
  std::vector<std::vector<std::byte>> inputs;
  for (const TensorSpec& input : spec.inputs) {
    inputs.emplace_back(static_cast<size_t>(input.bytes()));
  }
  std::vector<int32_t> documents(spec.has_documents ? static_cast<size_t>(set.features())
                                                    : size_t{0});
  std::vector<std::byte> target(static_cast<size_t>(spec.target.bytes()));
  constexpr int64_t kAnnounced = 256;
  std::vector<int64_t> announced;
  for (int64_t row = first, number = 0; row < set.rows(); row += stride, ++number) {
    if (number % kAnnounced == 0) {
      announced.clear();
      for (int64_t i = 0; i < kAnnounced && row + i * stride < set.rows(); ++i) {
        announced.push_back(row + i * stride);
      }
      set.WillRead(announced);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      set.CopyInput(static_cast<int>(i), row, absl::MakeSpan(inputs[i]));
      hasher.Update(absl::MakeConstSpan(inputs[i]));
    }
    if (!documents.empty()) {
      set.CopyDocuments(row, absl::MakeSpan(documents));
      for (const int32_t first_position : documents) hasher.UpdateValue(first_position);
    }
    if (target.empty()) continue;
    set.CopyTarget(row, absl::MakeSpan(target));
    hasher.Update(absl::MakeConstSpan(target));
  }
}

// Does the same for targets alone.
void AddTargets(const Dataset& set, int64_t stride, base::Hasher& hasher) {
  std::vector<std::byte> target(static_cast<size_t>(set.spec().target.bytes()));
  for (int64_t row = 0; row < set.rows(); row += stride) {
    set.CopyTarget(row, absl::MakeSpan(target));
    hasher.Update(absl::MakeConstSpan(target));
  }
}

int64_t BytesOfRow(const SampleSpec& spec) {
  int64_t bytes = spec.target.bytes();
  for (const TensorSpec& input : spec.inputs) bytes += input.bytes();
  return bytes;
}

void AddEncoding(const DataEncoding& encoding, base::Hasher& hasher) {
  for (const auto* const numbers : {&encoding.mean, &encoding.stddev}) {
    for (const double number : *numbers) hasher.UpdateValue(number);
  }
  // Classes hash as they did when each encoding had one mean.
  for (size_t i = 0; i < std::max<size_t>(1, encoding.label_mean.size()); ++i) {
    const bool has_mean = encoding.labels_are_numbers();
    hasher.UpdateValue(has_mean ? encoding.label_mean[i] : 0.0);
    hasher.UpdateValue(has_mean ? encoding.label_stddev[i] : 0.0);
  }
  for (const std::vector<std::string>& texts : encoding.categories) {
    for (const std::string& text : texts) hasher.Update(text + "\n");
  }
  for (const auto* const names :
       {&encoding.columns, &encoding.class_names, &encoding.label_names}) {
    for (const std::string& name : *names) hasher.Update(name + "\n");
  }
}

std::string HashOf(const Dataset& set, const DataEncoding& encoding, int64_t most_bytes) {
  base::Hasher hasher;
  AddEncoding(encoding, hasher);
  hasher.UpdateValue(set.rows());
  const int64_t stride = StrideOf(set.rows(), BytesOfRow(set.spec()), most_bytes);
  AddRows(set, 0, stride, hasher);
  // Labels are small compared with their samples.
  const int64_t target_bytes = set.spec().target.bytes();
  const int64_t target_stride = StrideOf(set.rows(), target_bytes, most_bytes);
  if (target_bytes > 0 && target_stride < stride) AddTargets(set, target_stride, hasher);
  // Some epochs read what is left after the last whole row of tokens.
  for (int64_t epoch = 1; epoch <= 4; ++epoch) {
    const std::shared_ptr<const Dataset> cut = set.ForEpoch(/*seed=*/0, epoch);
    if (cut != nullptr) AddRows(*cut, cut->rows() - 1, 1, hasher);
  }
  return hasher.HexDigest();
}

}  // namespace

DataFingerprint FingerprintOf(const TrainTest& data, int64_t most_bytes) {
  DataFingerprint fingerprint = {.train = HashOf(*data.train, data.encoding, most_bytes)};
  if (data.test != nullptr) {
    fingerprint.test = HashOf(*data.test, data.encoding, most_bytes);
  }
  return fingerprint;
}

}  // namespace stagecoach::engine
