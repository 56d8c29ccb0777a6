#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/data/images/decode.h"
#include "engine/data/images/orientation.h"
// Both need what comes before them.
#include "jpeglib.h"
// One of the two is first.
#include "jerror.h"

namespace stagecoach::engine {
namespace {

constexpr int kMaxJpegScans =
    500;  // a hostile file can have each scan change one bit of all pixels
constexpr int kExifMarker = JPEG_APP0 + 1;

// Returns a * b / 255, rounded, as Pillow computes it.
int Times255th(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

// A file that is being decoded. As for libpng, functions that call setjmp have no variable with a
// destructor.
class JpegDecoder {
 public:
  explicit JpegDecoder(absl::string_view file) : file_(file) {}
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&jpeg_); }

  absl::StatusOr<Image> Decode() {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = OnError;
    errors_.emit_message = OnMessage;
    if (!ReadHeader()) return Error();
    RETURN_IF_ERROR(CheckImageSize(jpeg_.image_height, jpeg_.image_width));
    if (!Start()) return Error();
    const bool is_cmyk = jpeg_.out_color_space == JCS_CMYK;
    const int components = jpeg_.output_components;
    Image image(jpeg_.output_height, jpeg_.output_width, is_cmyk ? 3 : components);
    std::vector<uint8_t> line(is_cmyk ? static_cast<size_t>(4 * image.width) : size_t{0});
    for (int64_t y = 0; y < image.height; ++y) {
      if (!ReadLine(is_cmyk ? line.data() : image.Row(y))) return Error();
      if (is_cmyk) FromCmyk(line, image.Row(y));
    }
    if (!Finish()) return Error();
    return Upright(std::move(image), orientation_);
  }

 private:
  [[noreturn]] static void Leave(j_common_ptr jpeg) {
    auto* const decoder = static_cast<JpegDecoder*>(jpeg->client_data);
    jpeg->err->format_message(jpeg, decoder->message_);
    std::longjmp(decoder->jump_, 1);
  }
  [[noreturn]] static void OnError(j_common_ptr jpeg) { Leave(jpeg); }
  // Warnings are errors if pixels are missing. Others, such as of bytes that belong to nothing, are
  // frequent, and of no consequence.
  static void OnMessage(j_common_ptr jpeg, int level) {
    const int code = jpeg->err->msg_code;
    const bool lacks_pixels = code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER ||
                              code == JWRN_HUFF_BAD_CODE || code == JWRN_MUST_RESYNC;
    if (level < 0 && lacks_pixels) Leave(jpeg);
  }
  static void OnProgress(j_common_ptr jpeg) {
    const auto* const decompress = reinterpret_cast<j_decompress_ptr>(jpeg);
    if (decompress->input_scan_number <= kMaxJpegScans) return;
    jpeg->err->msg_code = JERR_BAD_PROGRESSION;
    Leave(jpeg);
  }

  absl::Status Error() const {
    return base::DataError(absl::StrCat("is a damaged JPEG file: ", message_));
  }

  bool ReadHeader() {
    if (setjmp(jump_) != 0) return false;  // NOLINT(cert-err52-cpp): libjpeg's way
    jpeg_create_decompress(&jpeg_);
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(file_.data()), file_.size());
    jpeg_save_markers(&jpeg_, kExifMarker, 0xFFFF);
    progress_.progress_monitor = OnProgress;
    jpeg_.progress = &progress_;
    jpeg_read_header(&jpeg_, TRUE);
    return true;
  }

  bool Start() {
    constexpr absl::string_view kExif("Exif\0\0", 6);
    for (const jpeg_marker_struct* marker = jpeg_.marker_list; marker != nullptr;
         marker = marker->next) {
      const absl::string_view data(reinterpret_cast<const char*>(marker->data),
                                   marker->data_length);
      if (!absl::StartsWith(data, kExif)) continue;
      orientation_ = ExifOrientation(data.substr(kExif.size()));
      break;
    }
    const J_COLOR_SPACE space = jpeg_.jpeg_color_space;
    jpeg_.out_color_space = space == JCS_GRAYSCALE                   ? JCS_GRAYSCALE
                            : space == JCS_CMYK || space == JCS_YCCK ? JCS_CMYK
                                                                     : JCS_RGB;
    if (setjmp(jump_) != 0) return false;  // NOLINT(cert-err52-cpp)
    jpeg_start_decompress(&jpeg_);
    return true;
  }

  bool ReadLine(uint8_t* line) {
    if (setjmp(jump_) != 0) return false;  // NOLINT(cert-err52-cpp)
    return jpeg_read_scanlines(&jpeg_, &line, 1) == 1;
  }

  bool Finish() {
    if (setjmp(jump_) != 0) return false;  // NOLINT(cert-err52-cpp)
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  // Adobe's programs store inks inverted, and say that it was them.
  void FromCmyk(const std::vector<uint8_t>& line, uint8_t* to) const {
    const int flip = jpeg_.saw_Adobe_marker != 0 ? 0 : 0xFF;
    for (size_t i = 0; i < line.size(); i += 4) {
      const int light = line[i + 3] ^ flip;  // what black ink leaves
      for (size_t ink = 0; ink < 3; ++ink) {
        const int absorbed = 0xFF - (line[i + ink] ^ flip);
        *to++ = static_cast<uint8_t>(std::max(0, light - Times255th(absorbed, light)));
      }
    }
  }

  const absl::string_view file_;
  jpeg_decompress_struct jpeg_ = {};
  jpeg_error_mgr errors_ = {};
  jpeg_progress_mgr progress_ = {};
  jmp_buf jump_;
  char message_[JMSG_LENGTH_MAX] = {};
  int orientation_ = 1;
};

}  // namespace

absl::StatusOr<Image> DecodeJpeg(absl::string_view file) { return JpegDecoder(file).Decode(); }

}  // namespace stagecoach::engine
