#include "engine/data/formats/image_folder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "base/text/units.h"
#include "engine/data/formats/format.h"
#include "engine/data/images/image_files.h"
#include "engine/data/pixels.h"
#include "engine/data/random_streams.h"

namespace stagecoach::engine {
namespace {

namespace fs = std::filesystem;

constexpr int kMostReadAheadThreads = 16;

enum class FileKind { kImage, kOtherImage, kOther };

FileKind KindOf(const fs::path& path) {
  const std::string extension = absl::AsciiStrToLower(path.extension().string());
  for (const char* const image : {".png", ".jpg", ".jpeg"}) {
    if (extension == image) return FileKind::kImage;
  }
  for (const char* const other : {".gif", ".bmp", ".webp", ".tif", ".tiff", ".heic", ".avif",
                                  ".ppm", ".pgm", ".svg", ".ico", ".jp2"}) {
    if (extension == other) return FileKind::kOtherImage;
  }
  return FileKind::kOther;
}

bool IsHidden(const fs::path& path) { return absl::StartsWith(path.filename().string(), "."); }

// Calls visit(entry) for each file and folder in a folder that is not hidden, in no order; true
// ends it. Returns whether it was ended.
template <typename Visit>
bool VisitFolder(const fs::path& folder, Visit visit) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!IsHidden(entry->path()) && visit(*entry)) return true;
  }
  return false;
}

bool IsFolderEntry(const fs::directory_entry& entry) {
  std::error_code error;
  return entry.is_directory(error);
}

// Files and folders in which a search finds an image, or gives up: the first files of a class are
// images, but a folder of anything may have millions of others.
constexpr int64_t kMostLooks = 10'000;

// Returns whether there is an image among the first `looks` files and folders in the folder, at
// most that many levels below it. Takes off those that were looked at.
bool HasImage(const fs::path& folder, int levels, int64_t& looks) {
  bool found = false;
  VisitFolder(folder, [&](const fs::directory_entry& entry) {
    if (looks == 0) return true;
    --looks;
    found = KindOf(entry.path()) == FileKind::kImage ||
            (levels > 0 && IsFolderEntry(entry) && HasImage(entry.path(), levels - 1, looks));
    return found;
  });
  return found;
}

constexpr int kMostLevels = 8;  // below a class folder

// Returns the names of the subfolders that have images, sorted. `given_up`: one in which the search
// for them gave up.
std::vector<std::string> ClassFolders(const fs::path& folder, std::string* given_up = nullptr) {
  std::vector<std::string> names;
  VisitFolder(folder, [&](const fs::directory_entry& entry) {
    if (!IsFolderEntry(entry)) return false;
    int64_t looks = kMostLooks;
    if (HasImage(entry.path(), kMostLevels, looks)) {
      names.push_back(entry.path().filename().string());
    } else if (looks == 0 && given_up != nullptr) {
      *given_up = entry.path().filename().string();
    }
    return false;
  });
  std::sort(names.begin(), names.end());
  return names;
}

std::string DescribeGivenUp(const std::string& name) {
  return absl::StrCat(name, " has no image among the first ", base::FormatCount(kMostLooks),
                      " files in it");
}

// The places of both sets in a folder, each "" or a subfolder's name.
struct Parts {
  std::string train;
  std::string test;  // "": there is none
};

Parts FindParts(const fs::path& folder) {
  Parts parts;
  if (ClassFolders(folder / "train").empty()) return parts;
  parts.train = "train";
  for (const char* const name : {"val", "valid", "validation", "test"}) {
    if (!parts.test.empty() || ClassFolders(folder / name).empty()) continue;
    parts.test = name;
  }
  return parts;
}

// Files that are images of a kind that is not read.
struct LeftOut {
  int64_t count = 0;
  std::string first;
};

// Adds the images in `folder`/`name` and below, sorted.
void AddImages(const fs::path& folder, const std::string& name, int32_t label, ImageList& list,
               LeftOut& left_out) {
  std::vector<std::string> found;
  const auto visit = [&](auto& self, const std::string& prefix, int levels) -> void {
    VisitFolder(prefix.empty() ? folder : folder / prefix, [&](const fs::directory_entry& entry) {
      const std::string own = prefix.empty()
                                  ? entry.path().filename().string()
                                  : absl::StrCat(prefix, "/", entry.path().filename().string());
      if (IsFolderEntry(entry)) {
        if (levels > 0) self(self, own, levels - 1);
        return false;
      }
      const FileKind kind = KindOf(entry.path());
      if (kind == FileKind::kImage) found.push_back(own);
      if (kind == FileKind::kOtherImage && (++left_out.count == 1 || own < left_out.first)) {
        left_out.first = own;
      }
      return false;
    });
  };
  visit(visit, name, kMostLevels);
  std::sort(found.begin(), found.end());
  for (std::string& file : found) list.files.push_back({std::move(file), label});
}

void TellLeftOut(const std::string& folder, const LeftOut& left_out,
                 const ImageFolderOptions& options) {
  if (left_out.count == 0 || options.on_notice == nullptr) return;
  options.on_notice(absl::StrCat(folder, ": ", left_out.count,
                                 left_out.count == 1 ? " image is" : " images are",
                                 " neither PNG nor JPEG, and left out, such as ", left_out.first));
}

// Lists the images of class folders, whose labels are those of `label_of`.
absl::StatusOr<ImageList> ListClasses(const std::string& folder, const std::string& part,
                                      const std::map<std::string, int32_t>& label_of,
                                      const ImageFolderOptions& options) {
  ImageList list = {.folder = folder, .shape = options.shape};
  const fs::path root(folder);
  LeftOut left_out;
  std::string given_up;
  const std::vector<std::string> classes = ClassFolders(root / part, &given_up);
  if (!given_up.empty() && options.on_notice != nullptr) {
    options.on_notice(
        absl::StrCat((root / part).string(), ": ", DescribeGivenUp(given_up), ", and is left out"));
  }
  for (const std::string& name : classes) {
    const auto label = label_of.find(name);
    const std::string place = part.empty() ? name : absl::StrCat(part, "/", name);
    if (label == label_of.end()) {
      std::vector<std::string> known;
      for (const auto& [text, number] : label_of) {
        if (std::ssize(known) < 20) known.push_back(text);
      }
      return base::DataError(
          absl::StrCat(folder, "/", place, ": is the folder of no class that is known; these are ",
                       absl::StrJoin(known, ", "), label_of.size() > known.size() ? ", ..." : ""));
    }
    AddImages(root, place, label->second, list, left_out);
  }
  TellLeftOut(folder, left_out, options);
  return list;
}

absl::StatusOr<std::map<std::string, int32_t>> LabelsOfFolders(const std::string& folder,
                                                               const std::string& part) {
  const fs::path root = fs::path(folder) / part;
  std::string given_up;
  const std::vector<std::string> names = ClassFolders(root, &given_up);
  const std::string place = part.empty() ? folder : absl::StrCat(folder, "/", part);
  std::string stray;
  VisitFolder(root, [&](const fs::directory_entry& entry) {
    if (KindOf(entry.path()) == FileKind::kImage && !IsFolderEntry(entry)) {
      stray = entry.path().filename().string();
    }
    return !stray.empty();
  });
  if (!stray.empty()) {
    return base::DataError(absl::StrCat(place, "/", stray,
                                        ": is in no subfolder that names its class, as images to "
                                        "train on are: ",
                                        place, "/CLASS/", stray));
  }
  if (names.size() < 2) {
    return base::DataError(
        absl::StrCat(place, ": has ", names.size(), names.size() == 1 ? " folder" : " folders",
                     " of images, expected at least 2, one per class", given_up.empty() ? "" : "; ",
                     given_up.empty() ? "" : DescribeGivenUp(given_up)));
  }
  std::map<std::string, int32_t> labels;
  for (const std::string& name : names) {
    if (!base::IsUtf8(name)) {
      return base::DataError(absl::StrCat(place, ": the name of a class folder is not UTF-8"));
    }
    labels.emplace(name, static_cast<int32_t>(labels.size()));
  }
  return labels;
}

// Moves some of the images, drawn by the seed, to another list. Both keep the order.
absl::StatusOr<ImageList> HoldOut(ImageList& list, const ImageFolderOptions& options) {
  const int64_t rows = std::ssize(list.files);
  if (rows < 2) {
    return base::DataError(absl::StrCat(list.folder, ": has ", rows,
                                        " image, expected at least 2, one to train and one to "
                                        "test"));
  }
  const int64_t wanted = std::llround(static_cast<double>(rows) * options.test_fraction);
  const int64_t test_rows = std::clamp<int64_t>(wanted, 1, rows - 1);
  const std::vector<int64_t> order =
      base::Permutation(options.seed, StreamId(DataStream::kImageHoldOut), rows);
  std::vector<bool> is_test(static_cast<size_t>(rows), false);
  for (int64_t i = 0; i < test_rows; ++i) {
    is_test[static_cast<size_t>(order[static_cast<size_t>(i)])] = true;
  }
  ImageList train = list, test = list;
  train.files.clear();
  test.files.clear();
  for (int64_t row = 0; row < rows; ++row) {
    const auto index = static_cast<size_t>(row);
    (is_test[index] ? test : train).files.push_back(std::move(list.files[index]));
  }
  list = std::move(train);
  return test;
}

int ThreadsForImages() { return std::min(base::AvailableCpus(), kMostReadAheadThreads); }

// A list, and what reading it once has found.
struct ImageSet {
  ImageList list;
  ScannedImages scanned;
};

void DropBroken(ImageSet& set) {
  const auto row_bytes = static_cast<size_t>(set.list.row_bytes());
  std::vector<std::byte>& pixels = set.scanned.pixels;
  const std::vector<int64_t>& broken = set.scanned.broken;
  size_t kept = 0;
  for (size_t row = 0; row < set.list.files.size(); ++row) {
    if (std::binary_search(broken.begin(), broken.end(), static_cast<int64_t>(row))) continue;
    if (kept != row) {
      set.list.files[kept] = std::move(set.list.files[row]);
      if (!pixels.empty()) {
        std::copy_n(pixels.begin() + static_cast<std::ptrdiff_t>(row * row_bytes), row_bytes,
                    pixels.begin() + static_cast<std::ptrdiff_t>(kept * row_bytes));
      }
    }
    ++kept;
  }
  set.list.files.resize(kept);
  if (!pixels.empty()) pixels.resize(kept * row_bytes);
}

// Reads all images of sets. Broken ones are errors, or are left out.
absl::Status Scan(absl::Span<ImageSet* const> sets, const ImageFolderOptions& options) {
  if (options.has_shapes_only) return absl::OkStatus();
  int64_t images = 0, broken = 0;
  absl::Status first;
  for (ImageSet* const set : sets) {
    set->scanned = ScanImages(set->list, options.most_kept_bytes, base::AvailableCpus());
    images += std::ssize(set->list.files);
    broken += std::ssize(set->scanned.broken);
    first.Update(set->scanned.first_error);
  }
  if (broken == 0) return absl::OkStatus();
  const std::string message =
      absl::StrCat(sets.front()->list.folder, ": ", broken, " of ", images,
                   " images cannot be read: ", broken > 1 ? "the first is " : "", first.message());
  if (!options.skips_broken) {
    return base::DataError(absl::StrCat(message, "; --skip-broken-images leaves out such images"));
  }
  for (ImageSet* const set : sets) {
    DropBroken(*set);
    if (set->list.files.empty()) return base::DataError(absl::StrCat(message, "; none is left"));
  }
  if (options.on_notice != nullptr) options.on_notice(absl::StrCat(message, "; left out"));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Dataset>> SetOf(ImageSet set, const PixelStatistics& pixels,
                                                     bool has_random_boxes) {
  const std::string folder = set.list.folder;
  auto created = ImageFileDataset::Create(std::make_shared<const ImageList>(std::move(set.list)),
                                          {.mean = pixels.mean,
                                           .stddev = pixels.stddev,
                                           .pixels = std::move(set.scanned.pixels),
                                           .has_random_boxes = has_random_boxes,
                                           .threads = ThreadsForImages()});
  RETURN_IF_ERROR(base::Annotate(created.status(), folder));
  return *std::move(created);
}

ImageFolderOptions ImageFolderOptionsOf(const DataSource& source) {
  ImageFolderOptions options;
  const kernels::Shape& taken = source.model_input;
  const bool is_image = taken.rank() == 3;
  const int64_t channels = is_image && taken.dim(0) == 1 ? 1 : 3;
  const int64_t side = source.image_size > 0 ? source.image_size : kDefaultImageSide;
  options.shape = is_image && source.image_size == 0
                      ? kernels::Shape{channels, taken.dim(1), taken.dim(2)}
                      : kernels::Shape{channels, side, side};
  options.test_fraction = source.test_fraction.value_or(kDefaultImageTestFraction);
  options.seed = source.seed;
  options.skips_broken = source.skips_broken_images;
  options.has_random_boxes = source.augmentation.cuts_boxes;
  options.has_shapes_only = source.has_shapes_only;
  options.on_notice = source.on_notice;
  return options;
}

}  // namespace

bool HoldsImageFolder(const std::string& path) {
  std::error_code error;
  if (KindOf(path) == FileKind::kImage && fs::is_regular_file(path, error)) return true;
  constexpr int kLevelsToLook = 3;
  int64_t looks = 10 * kMostLooks;
  return IsDirectory(path) && HasImage(path, kLevelsToLook, looks);
}

bool IsDividedImageFolder(const std::string& path) { return FindParts(path).test.empty(); }

absl::StatusOr<TrainTest> LoadImageFolder(const std::string& folder,
                                          const ImageFolderOptions& options) {
  if (!IsDirectory(folder)) {
    return base::DataError(
        absl::StrCat(folder,
                     ": is one image, which can be predicted; to train, name a folder of "
                     "images in a subfolder per class"));
  }
  const Parts parts = FindParts(folder);
  ASSIGN_OR_RETURN(const auto label_of, LabelsOfFolders(folder, parts.train));
  ImageSet train, test;
  ASSIGN_OR_RETURN(train.list, ListClasses(folder, parts.train, label_of, options));
  std::vector<ImageSet*> sets = {&train};
  if (options.sets == Sets::kBoth) {
    sets.push_back(&test);
    if (parts.test.empty()) {
      ASSIGN_OR_RETURN(test.list, HoldOut(train.list, options));
    } else {
      ASSIGN_OR_RETURN(test.list, ListClasses(folder, parts.test, label_of, options));
    }
  }
  for (ImageSet* const set : sets) set->list.classes = std::ssize(label_of);
  RETURN_IF_ERROR(Scan(sets, options));
  const PixelStatistics pixels = options.has_shapes_only
                                     ? PixelStatistics{.mean = 0.0, .stddev = 1.0}
                                     : MeasurePixels(train.scanned.histogram);
  TrainTest data;
  data.encoding = {.mean = {pixels.mean}, .stddev = {pixels.stddev}};
  for (const auto& [name, label] : label_of) data.encoding.class_names.push_back(name);
  ASSIGN_OR_RETURN(data.train, SetOf(std::move(train), pixels, options.has_random_boxes));
  if (options.sets == Sets::kTraining) return data;
  ASSIGN_OR_RETURN(data.test, SetOf(std::move(test), pixels, false));
  return data;
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadFolderImages(const std::string& folder,
                                                                const ImageFolderOptions& options,
                                                                const DataEncoding& encoding,
                                                                int64_t classes) {
  const fs::path root(folder);
  const Parts parts = FindParts(root);
  ImageSet set;
  const bool has_stray = VisitFolder(root, [](const fs::directory_entry& entry) {
    return KindOf(entry.path()) == FileKind::kImage && !IsFolderEntry(entry);
  });
  if (!IsDirectory(folder)) {
    set.list = {.folder = root.has_parent_path() ? root.parent_path().string() : ".",
                .files = {{.name = root.filename().string()}},
                .shape = options.shape};
  } else if (has_stray) {
    set.list = {.folder = folder, .shape = options.shape};
    LeftOut left_out;
    AddImages(root, "", 0, set.list, left_out);
    TellLeftOut(folder, left_out, options);
  } else {
    std::map<std::string, int32_t> label_of;
    for (int64_t label = 0; label < classes; ++label) {
      label_of.emplace(encoding.NameOf(label), static_cast<int32_t>(label));
    }
    ASSIGN_OR_RETURN(set.list, ListClasses(folder, parts.test, label_of, options));
    set.list.classes = classes;
  }
  ImageSet* const sets[] = {&set};
  RETURN_IF_ERROR(Scan(sets, options));
  return SetOf(std::move(set), {encoding.mean.front(), encoding.stddev.front()}, false);
}

const DataFormat kImageFolderFormat = {
    .name = "images",
    .form = "a folder of .png and .jpg files in a subfolder per class",
    .matches = [](const DataSource& source) { return HoldsImageFolder(source.spec); },
    .load =
        [](const DataSource& source, Sets sets) {
          ImageFolderOptions options = ImageFolderOptionsOf(source);
          options.sets = sets;
          return LoadImageFolder(source.spec, options);
        },
    .load_samples = [](const DataSource& source, const DataEncoding& encoding,
                       int64_t classes) -> absl::StatusOr<std::shared_ptr<const Dataset>> {
      RETURN_IF_ERROR(CheckEncodesImages(encoding));
      return LoadFolderImages(source.spec, ImageFolderOptionsOf(source), encoding, classes);
    },
    .has_image_files = true,
    .test_fraction = kDefaultImageTestFraction,
    .is_divided = [](const DataSource& source) { return IsDividedImageFolder(source.spec); },
};

}  // namespace stagecoach::engine
