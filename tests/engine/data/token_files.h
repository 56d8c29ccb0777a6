#ifndef STAGECOACH_TESTS_ENGINE_DATA_TOKEN_FILES_H_
#define STAGECOACH_TESTS_ENGINE_DATA_TOKEN_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

// Contents of token files, byte by byte.
namespace stagecoach::engine {

// Returns values of N bytes each, the lowest first.
template <typename T>
std::string LittleEndian(const std::vector<T>& values, int bytes) {
  std::string text;
  for (const T value : values) {
    for (int i = 0; i < bytes; ++i) {
      text.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xFF));
    }
  }
  return text;
}

inline std::string RawTokens(const std::vector<int64_t>& ids) { return LittleEndian(ids, 2); }

inline std::string LlmcTokens(const std::vector<int64_t>& ids, int64_t count,
                              int64_t magic = 20240520, int64_t version = 1) {
  std::vector<int64_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return LittleEndian(header, 4) + RawTokens(ids);
}

// `header` is the dictionary, to which a line end is added.
inline std::string NpyFile(const std::string& header, const std::string& elements,
                           int version = 1) {
  const std::string text = header + "  \n";
  return absl::StrCat(
      "\x93NUMPY", LittleEndian(std::vector<int64_t>{version, 0}, 1),
      LittleEndian(std::vector<int64_t>{static_cast<int64_t>(text.size())}, version == 1 ? 2 : 4),
      text, elements);
}

inline std::string NpyHeader(const std::string& type, int64_t count) {
  return absl::StrCat("{'descr': '", type, "', 'fortran_order': False, 'shape': (", count, ",), }");
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_DATA_TOKEN_FILES_H_
