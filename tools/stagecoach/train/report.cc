#include "tools/stagecoach/train/report.h"

#include <filesystem>
#include <system_error>

namespace stagecoach::tools {

Measures Measures::Of(const engine::Dataset& data, const engine::LossSpec& loss,
                      const engine::DataEncoding& encoding) {
  const engine::TensorSpec& input = data.spec().inputs.front();
  if (!input.has_ids()) return {.label_stddev = encoding.label_stddev};
  return {.tokens = input.shape.elements(), .has_perplexity = loss.is_log_likelihood};
}

int64_t FolderBytes(const std::string& folder) {
  std::error_code error;
  uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
    const uintmax_t own = entry.is_regular_file(error) ? entry.file_size(error) : 0;
    if (!error) bytes += own;
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace stagecoach::tools
