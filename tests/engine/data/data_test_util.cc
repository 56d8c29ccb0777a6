#include "tests/engine/data/data_test_util.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "zlib.h"

namespace stagecoach::engine {

std::string TestDirectory() {
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string directory =
      absl::StrCat(::testing::TempDir(), "/", test.test_suite_name(), ".", test.name());
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  return directory;
}

std::string WriteTestFile(const std::string& directory, const std::string& name,
                          const std::string& contents) {
  const std::string path = absl::StrCat(directory, "/", name);
  std::ofstream file(path, std::ios::binary);
  file << contents;
  file.close();
  STAGECOACH_CHECK(file.good(), absl::StrCat("cannot write ", path));
  return path;
}

std::string Gzip(const std::string& contents) {
  constexpr int kGzipFormat = 16;
  z_stream stream = {};
  STAGECOACH_CHECK(deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, MAX_WBITS + kGzipFormat, 8,
                                Z_DEFAULT_STRATEGY) == Z_OK,
                   "deflateInit2 failed");
  std::string compressed(deflateBound(&stream, contents.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(contents.data()));
  stream.avail_in = static_cast<uInt>(contents.size());
  stream.next_out = reinterpret_cast<Bytef*>(compressed.data());
  stream.avail_out = static_cast<uInt>(compressed.size());
  STAGECOACH_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "deflate failed");
  compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return compressed;
}

std::string IdxFile(const std::vector<uint32_t>& shape, const std::string& elements) {
  std::string file = {0, 0, 8, static_cast<char>(shape.size())};
  for (const uint32_t size : shape) {
    for (const int shift : {24, 16, 8, 0}) file.push_back(static_cast<char>(size >> shift));
  }
  return file + elements;
}

std::vector<float> FeaturesOf(const Dataset& dataset, int64_t row) {
  std::vector<float> features(dataset.features());
  dataset.CopyNumbers(0, row, absl::MakeSpan(features));
  return features;
}

std::vector<int32_t> LabelsOf(const Dataset& dataset) {
  std::vector<int32_t> labels;
  for (int64_t row = 0; row < dataset.rows(); ++row) labels.push_back(dataset.label(row));
  return labels;
}

}  // namespace stagecoach::engine
