#include "engine/data/stream_dataset.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "kernels/loss_terms.h"

namespace stagecoach::engine {
namespace {

// Samples that are made once and then forgotten. The stages of a run read each step's rows at about
// the same time, so a window of the last ones is enough, wherever they begin.
class StreamDataset final : public Dataset {
 public:
  explicit StreamDataset(std::unique_ptr<SampleGenerator> generator)
      : Dataset(generator->spec()), generator_(std::move(generator)) {}

  int64_t rows() const override { return kEndlessRows; }
  bool is_endless() const override { return true; }

  int64_t AnswersOf(int64_t row) const override {
    const int64_t answers = spec().target.answers();
    if (spec().target.kind != TargetSpec::Kind::kClasses) return answers;
    std::vector<int32_t> labels(static_cast<size_t>(answers));
    CopyTarget(row, absl::MakeSpan(reinterpret_cast<std::byte*>(labels.data()),
                                   labels.size() * sizeof(int32_t)));
    const auto none = std::count(labels.begin(), labels.end(), kernels::kNoLabel);
    return std::max<int64_t>(answers - none, 1);
  }

  absl::Status ReadStatus() const override {
    base::MutexLock lock(mutex_);
    return status_;
  }

 private:
  // A sample: its inputs, then its target.
  using Parts = std::vector<std::vector<std::byte>>;
  static constexpr size_t kFewestKept = 64;

  void ReadInput(int i, int64_t row, std::byte* out) const override {
    ReadPart(static_cast<size_t>(i), row, out);
  }
  void ReadTarget(int64_t row, std::byte* out) const override {
    ReadPart(spec().inputs.size(), row, out);
  }

  void ReadPart(size_t part, int64_t row, std::byte* out) const {
    base::MutexLock lock(mutex_);
    const std::vector<std::byte>& bytes = SampleAt(row)[part];
    std::copy(bytes.begin(), bytes.end(), out);
  }

  const Parts& SampleAt(int64_t row) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (row < first_) {
      // It has been made before: the window is too small.
      most_kept_ *= 2;
      Begin(row);
    } else if (row >= first_ + std::ssize(kept_) + static_cast<int64_t>(most_kept_)) {
      Begin(row);  // where the run resumes
    }
    while (row >= first_ + std::ssize(kept_)) {
      if (kept_.size() >= most_kept_) {
        kept_.pop_front();
        ++first_;
      }
      kept_.push_back(Make(first_ + std::ssize(kept_)));
    }
    return kept_[static_cast<size_t>(row - first_)];
  }

  void Begin(int64_t row) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    kept_.clear();
    first_ = row;
    next_ = -1;
  }

  // A sample that cannot be made is 0.
  Parts Make(int64_t row) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Parts parts;
    for (const TensorSpec& input : spec().inputs) {
      parts.emplace_back(static_cast<size_t>(input.bytes()));
    }
    parts.emplace_back(static_cast<size_t>(spec().target.bytes()));
    if (!status_.ok()) return parts;
    if (next_ != row) Note(row, generator_->Seek(row));
    std::vector<absl::Span<std::byte>> inputs(parts.begin(), std::prev(parts.end()));
    if (status_.ok()) Note(row, generator_->Next(inputs, absl::MakeSpan(parts.back())));
    if (!status_.ok()) {
      for (std::vector<std::byte>& part : parts) std::fill(part.begin(), part.end(), std::byte{0});
    }
    next_ = row + 1;
    return parts;
  }

  void Note(int64_t row, const absl::Status& status) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    status_.Update(base::Annotate(status, absl::StrCat("sample ", row, " of the stream")));
  }

  const std::unique_ptr<SampleGenerator> generator_;
  mutable base::Mutex mutex_;
  mutable std::deque<Parts> kept_ ABSL_GUARDED_BY(mutex_);  // consecutive
  mutable int64_t first_ ABSL_GUARDED_BY(mutex_) = 0;       // of them
  mutable int64_t next_ ABSL_GUARDED_BY(mutex_) = -1;       // of the generator; -1: unknown
  mutable size_t most_kept_ ABSL_GUARDED_BY(mutex_) = kFewestKept;
  mutable absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class MadeByFunction final : public SampleGenerator {
 public:
  MadeByFunction(SampleSpec spec, MakeSample make)
      : spec_(std::move(spec)), make_(std::move(make)) {}

  SampleSpec spec() const override { return spec_; }
  absl::Status Seek(int64_t position) override {
    next_ = position;
    return absl::OkStatus();
  }
  absl::Status Next(absl::Span<const absl::Span<std::byte>> inputs,
                    absl::Span<std::byte> target) override {
    return make_(next_++, inputs, target);
  }

 private:
  const SampleSpec spec_;
  const MakeSample make_;
  int64_t next_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> StreamOf(std::unique_ptr<SampleGenerator> generator) {
  return std::make_shared<const StreamDataset>(std::move(generator));
}

std::shared_ptr<const Dataset> StreamOf(SampleSpec spec, MakeSample make) {
  return StreamOf(std::make_unique<MadeByFunction>(std::move(spec), std::move(make)));
}

}  // namespace stagecoach::engine
