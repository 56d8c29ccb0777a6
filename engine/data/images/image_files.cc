#include "engine/data/images/image_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/line.h"
#include "engine/data/images/decode.h"
#include "engine/data/images/resize.h"
#include "engine/data/random_streams.h"

namespace stagecoach::engine {
namespace {

// Draws a box as torchvision's RandomResizedCrop does: if ten draws do not fit, the middle.
ImageBox RandomBox(const RandomBoxes& boxes, int64_t row, int64_t height, int64_t width) {
  constexpr double kLeastArea = 0.08;
  constexpr double kWidest = 4.0 / 3.0;
  constexpr int kDraws = 10;
  constexpr uint64_t kNumbersOfRow = 64;  // 4 a draw
  const base::RandomStream stream(boxes.seed, StreamId(DataStream::kImageBox, boxes.epoch));
  uint64_t next = static_cast<uint64_t>(row) * kNumbersOfRow;
  const auto uniform = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(stream.Uniform(next++));
  };
  const auto below = [&](int64_t count) {
    return static_cast<int64_t>(uniform(0.0, static_cast<double>(count)));
  };
  const double area = static_cast<double>(height) * static_cast<double>(width);
  for (int draw = 0; draw < kDraws; ++draw) {
    const double wanted = area * uniform(kLeastArea, 1.0);
    const double ratio = std::exp(uniform(-std::log(kWidest), std::log(kWidest)));
    ImageBox box = {.height = std::llround(std::sqrt(wanted / ratio)),
                    .width = std::llround(std::sqrt(wanted * ratio))};
    box.top = below(std::max<int64_t>(0, height - box.height) + 1);
    box.left = below(std::max<int64_t>(0, width - box.width) + 1);
    const bool fits = box.height > 0 && box.height <= height && box.width > 0 && box.width <= width;
    if (fits) return box;
  }
  const auto most = [](int64_t side) {
    return static_cast<int64_t>(static_cast<double>(side) * kWidest);
  };
  ImageBox middle = {.height = std::min(height, std::max<int64_t>(1, most(width))),
                     .width = std::min(width, std::max<int64_t>(1, most(height)))};
  middle.top = (height - middle.height) / 2;
  middle.left = (width - middle.width) / 2;
  return middle;
}

// Writes pixels whose channels are together as one plane after another.
void WritePlanes(const Image& image, absl::Span<std::byte> out) {
  const int64_t places = image.height * image.width;
  for (int channel = 0; channel < image.channels; ++channel) {
    for (int64_t place = 0; place < places; ++place) {
      out[static_cast<size_t>(channel * places + place)] =
          std::byte{image.pixels[static_cast<size_t>(place * image.channels + channel)]};
    }
  }
}

}  // namespace

std::string ImageList::PathOf(int64_t row) const {
  return absl::StrCat(folder, "/", files[static_cast<size_t>(row)].name);
}

absl::Status ReadImageFile(const ImageList& list, int64_t row,
                           const std::optional<RandomBoxes>& boxes, absl::Span<std::byte> out) {
  const int64_t height = list.shape.dim(1), width = list.shape.dim(2);
  const std::string path = list.PathOf(row);
  ASSIGN_OR_RETURN(const std::string file, base::ReadFile(path, kMaxImageFileBytes));
  const absl::StatusOr<Image> image = DecodeImage(file, static_cast<int>(list.shape.dim(0)));
  if (!image.ok()) {
    return base::WithMessage(image.status(), absl::StrCat(path, " ", image.status().message()));
  }
  WritePlanes(
      boxes.has_value()
          ? Resize(*image, RandomBox(*boxes, row, image->height, image->width), height, width)
          : FitInto(*image, height, width),
      out);
  return absl::OkStatus();
}

ScannedImages ScanImages(const ImageList& list, int64_t most_kept_bytes, int threads) {
  const auto row_bytes = static_cast<size_t>(list.row_bytes());
  const int64_t rows = std::ssize(list.files);
  ScannedImages scanned;
  if (rows <= most_kept_bytes / list.row_bytes()) {
    scanned.pixels.resize(static_cast<size_t>(rows) * row_bytes);
  }
  std::mutex mutex;
  base::ForEachInParallel(rows, threads, [&](int64_t row) {
    std::vector<std::byte> own(scanned.pixels.empty() ? row_bytes : size_t{0});
    const absl::Span<std::byte> pixels =
        own.empty() ? absl::MakeSpan(scanned.pixels)
                          .subspan(static_cast<size_t>(row) * row_bytes, row_bytes)
                    : absl::MakeSpan(own);
    const absl::Status status = ReadImageFile(list, row, std::nullopt, pixels);
    PixelHistogram histogram = {};
    for (const std::byte pixel : pixels) ++histogram[std::to_integer<size_t>(pixel)];
    const std::lock_guard<std::mutex> lock(mutex);
    if (!status.ok()) {
      if (scanned.broken.empty() || row < scanned.broken.front()) scanned.first_error = status;
      scanned.broken.insert(std::lower_bound(scanned.broken.begin(), scanned.broken.end(), row),
                            row);
      return;
    }
    for (size_t v = 0; v < histogram.size(); ++v) scanned.histogram[v] += histogram[v];
  });
  return scanned;
}

ImageFileDataset::ImageFileDataset(SampleSpec spec, std::shared_ptr<const ImageList> list,
                                   Options options, std::optional<RandomBoxes> boxes)
    : Dataset(std::move(spec)),
      list_(std::move(list)),
      options_(std::move(options)),
      boxes_(boxes),
      ahead_(options_.threads, list_->row_bytes(),
             std::max<int64_t>(1, options_.most_ahead_bytes / list_->row_bytes()),
             [this](int64_t row, absl::Span<std::byte> out) {
               return ReadImageFile(*list_, row, boxes_, out);
             }) {}

absl::StatusOr<std::shared_ptr<const ImageFileDataset>> ImageFileDataset::Create(
    std::shared_ptr<const ImageList> list, Options options) {
  ASSIGN_OR_RETURN(SampleSpec spec,
                   ImageSpec(list->shape, list->classes, options.mean, options.stddev));
  return std::shared_ptr<const ImageFileDataset>(
      new ImageFileDataset(std::move(spec), std::move(list), std::move(options), std::nullopt));
}

std::shared_ptr<const Dataset> ImageFileDataset::ForEpoch(uint64_t seed, int64_t epoch) const {
  if (!options_.has_random_boxes) return nullptr;
  Options own = {.threads = options_.threads, .most_ahead_bytes = options_.most_ahead_bytes};
  return std::shared_ptr<const Dataset>(
      new ImageFileDataset(spec(), list_, std::move(own), RandomBoxes{seed, epoch}));
}

std::string ImageFileDataset::NameOf(int64_t row) const {
  return list_->files[static_cast<size_t>(row)].name;
}

void ImageFileDataset::WillRead(absl::Span<const int64_t> rows) const {
  if (options_.pixels.empty()) ahead_.Announce(rows);
}

absl::Status ImageFileDataset::ReadStatus() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void ImageFileDataset::ReadInput(int /*i*/, int64_t row, std::byte* out) const {
  const auto bytes = static_cast<size_t>(list_->row_bytes());
  if (!options_.pixels.empty()) {
    std::memcpy(out, options_.pixels.data() + static_cast<size_t>(row) * bytes, bytes);
    return;
  }
  const absl::Status status = ahead_.Read(row, absl::MakeSpan(out, bytes));
  if (status.ok()) return;
  std::memset(out, 0, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  status_.Update(status);
}

void ImageFileDataset::ReadTarget(int64_t row, std::byte* out) const {
  if (list_->classes == 0) return;
  std::memcpy(out, &list_->files[static_cast<size_t>(row)].label, sizeof(int32_t));
}

}  // namespace stagecoach::engine
