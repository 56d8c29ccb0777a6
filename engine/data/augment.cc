#include "engine/data/augment.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error_class.h"
#include "base/random.h"
#include "engine/data/random_streams.h"

namespace stagecoach::engine {
namespace {

// A view of another set, which everything but the inputs is read from.
class AugmentedView : public Dataset {
 public:
  AugmentedView(std::shared_ptr<const Dataset> images, const Augmentation& augmentation)
      : Dataset(images->spec()), images_(std::move(images)), augmentation_(augmentation) {}

  int64_t rows() const override { return images_->rows(); }
  int64_t AnswersOf(int64_t row) const override { return images_->AnswersOf(row); }
  std::string NameOf(int64_t row) const override { return images_->NameOf(row); }
  void WillRead(absl::Span<const int64_t> rows) const override { images_->WillRead(rows); }
  absl::Status ReadStatus() const override { return images_->ReadStatus(); }
  std::shared_ptr<const Dataset> ForEpoch(uint64_t seed, int64_t epoch) const override;

 protected:
  void ReadInput(int i, int64_t row, std::byte* out) const override {
    images_->CopyInput(i, row, absl::MakeSpan(out, static_cast<size_t>(image().bytes())));
  }
  const TensorSpec& image() const { return spec().inputs.front(); }

  const std::shared_ptr<const Dataset> images_;
  const Augmentation augmentation_;

 private:
  void ReadTarget(int64_t row, std::byte* out) const override {
    images_->CopyTarget(row, absl::MakeSpan(out, static_cast<size_t>(spec().target.bytes())));
  }
};

// The same in one epoch.
class AugmentedEpoch final : public AugmentedView {
 public:
  AugmentedEpoch(std::shared_ptr<const Dataset> images, const Augmentation& augmentation,
                 uint64_t seed, int64_t epoch)
      : AugmentedView(std::move(images), augmentation),
        random_(seed, StreamId(DataStream::kImageShift, epoch)) {}

  std::shared_ptr<const Dataset> ForEpoch(uint64_t /*seed*/, int64_t /*epoch*/) const override {
    return nullptr;
  }

 private:
  void ReadInput(int i, int64_t row, std::byte* out) const override {
    AugmentedView::ReadInput(i, row, out);
    // Three numbers a row. A row has the same ones whatever is done with them.
    const auto draw = [&](uint64_t number, uint64_t count) {
      return static_cast<int64_t>(random_.Below(static_cast<uint64_t>(row) * 3 + number, count));
    };
    if (augmentation_.shifts) {
      constexpr uint64_t kShifts = 2 * kMostShift + 1;
      Shift(draw(0, kShifts) - kMostShift, draw(1, kShifts) - kMostShift, out);
    }
    if (augmentation_.flips && draw(2, 2) == 1) Flip(out);
  }

  // Moves the image down and to the right.
  void Shift(int64_t down, int64_t right, std::byte* out) const {
    const int64_t height = image().shape.dim(1), width = image().shape.dim(2);
    const int64_t size = SizeOf(image().type);
    const std::vector<std::byte> from(out, out + image().bytes());
    const int64_t count = std::max<int64_t>(0, width - std::abs(right));
    std::memset(out, 0, from.size());
    for (int64_t line = 0; line < image().shape.dim(0) * height && count > 0; ++line) {
      const int64_t y = line % height - down;  // in the image
      if (y < 0 || y >= height) continue;
      std::memcpy(out + (line * width + std::max<int64_t>(0, right)) * size,
                  from.data() + ((line - down) * width + std::max<int64_t>(0, -right)) * size,
                  static_cast<size_t>(count * size));
    }
  }

  void Flip(std::byte* out) const {
    const int64_t width = image().shape.dim(2), size = SizeOf(image().type);
    for (int64_t line = 0; line < image().shape.dim(0) * image().shape.dim(1); ++line) {
      std::byte* const first = out + line * width * size;
      for (int64_t left = 0, right = width - 1; left < right; ++left, --right) {
        std::swap_ranges(first + left * size, first + (left + 1) * size, first + right * size);
      }
    }
  }

  const base::RandomStream random_;
};

std::shared_ptr<const Dataset> AugmentedView::ForEpoch(uint64_t seed, int64_t epoch) const {
  std::shared_ptr<const Dataset> own = images_->ForEpoch(seed, epoch);
  if (own == nullptr) own = images_;
  return std::make_shared<const AugmentedEpoch>(std::move(own), augmentation_, seed, epoch);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Dataset>> Augmented(std::shared_ptr<const Dataset> images,
                                                         const Augmentation& augmentation) {
  const SampleSpec& spec = images->spec();
  const bool are_images = spec.inputs.size() == 1 && !spec.inputs.front().has_ids() &&
                          spec.inputs.front().shape.rank() == 3;
  if (!are_images) {
    return base::DataError(
        "--augment is for images, of channels, height and width, and the data have none");
  }
  if (!augmentation.flips && !augmentation.shifts) return images;
  return std::make_shared<const AugmentedView>(std::move(images), augmentation);
}

}  // namespace stagecoach::engine
