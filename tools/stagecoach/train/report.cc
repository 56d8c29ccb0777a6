#include "tools/stagecoach/train/report.h"

namespace stagecoach::tools {

Measures Measures::Of(const engine::Dataset& data, const engine::LossSpec& loss,
                      const engine::DataEncoding& encoding) {
  const engine::TensorSpec& input = data.spec().inputs.front();
  if (!input.has_ids()) return {.label_stddev = encoding.label_stddev};
  return {.tokens = input.shape.elements(), .has_perplexity = loss.is_log_likelihood};
}

}  // namespace stagecoach::tools
