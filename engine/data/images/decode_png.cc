#include <csetjmp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/data/images/decode.h"
#include "engine/data/images/orientation.h"
#include "png.h"

namespace stagecoach::engine {
namespace {

constexpr png_alloc_size_t kMaxPngChunkBytes = png_alloc_size_t{8} << 20;
constexpr png_uint_32 kMaxPngChunks = 1000;

// A file that is being decoded. Errors of libpng leave its functions by longjmp, and so past what
// they are called from: functions that call setjmp have no variable with a destructor.
class PngDecoder {
 public:
  explicit PngDecoder(absl::string_view file) : rest_(file) {}
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }

  absl::StatusOr<Image> Decode() {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, OnError, OnWarning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) return absl::ResourceExhaustedError("no memory for libpng");
    if (!ReadHeader()) return Error();
    RETURN_IF_ERROR(CheckImageSize(height_, width_));
    if (!SetTransforms()) return Error();
    Image image(height_, width_, channels_);
    for (int64_t y = 0; y < height_; ++y) rows_.push_back(image.Row(y));
    if (!ReadPixels()) return Error();
    return Upright(std::move(image), orientation_);
  }

 private:
  [[noreturn]] static void OnError(png_structp png, png_const_charp message) {
    auto* const decoder = static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::strncpy(decoder->message_, message, sizeof(message_) - 1);
    png_longjmp(png, 1);
  }
  static void OnWarning(png_structp /*png*/, png_const_charp /*message*/) {}
  static void Read(png_structp png, png_bytep out, size_t count) {
    absl::string_view& rest = static_cast<PngDecoder*>(png_get_io_ptr(png))->rest_;
    if (rest.size() < count) png_error(png, "the file is truncated");
    std::memcpy(out, rest.data(), count);
    rest.remove_prefix(count);
  }

  absl::Status Error() const {
    return base::DataError(absl::StrCat("is a damaged PNG file: ", message_));
  }

  bool ReadHeader() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT(cert-err52-cpp): libpng's way
    png_set_read_fn(png_, this, Read);
    // CheckImageSize has the limit.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_chunk_malloc_max(png_, kMaxPngChunkBytes);
    png_set_chunk_cache_max(png_, kMaxPngChunks);
    png_read_info(png_, info_);
    height_ = png_get_image_height(png_, info_);
    width_ = png_get_image_width(png_, info_);
    return true;
  }

  bool SetTransforms() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT(cert-err52-cpp)
    png_set_expand(png_);
    png_set_scale_16(png_);
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    channels_ = png_get_channels(png_, info_);
    const bool is_known = (channels_ == 1 || channels_ == 3) && png_get_bit_depth(png_, info_) == 8;
    if (!is_known) png_error(png_, "unknown type of pixels");
    return true;
  }

  bool ReadPixels() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT(cert-err52-cpp)
    png_read_image(png_, rows_.data());
    png_read_end(png_, info_);
    png_bytep exif = nullptr;
    png_uint_32 bytes = 0;
    if (png_get_eXIf_1(png_, info_, &bytes, &exif) != 0) {
      orientation_ = ExifOrientation({reinterpret_cast<const char*>(exif), bytes});
    }
    return true;
  }

  absl::string_view rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int64_t height_ = 0, width_ = 0;
  int channels_ = 0;
  int orientation_ = 1;
  std::vector<png_bytep> rows_;
  char message_[128] = {};
};

}  // namespace

absl::StatusOr<Image> DecodePng(absl::string_view file) { return PngDecoder(file).Decode(); }

}  // namespace stagecoach::engine
