#ifndef STAGECOACH_ENGINE_MODELS_FAMILIES_FAMILY_H_
#define STAGECOACH_ENGINE_MODELS_FAMILIES_FAMILY_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/text/json.h"
#include "engine/models/hugging_face.h"
#include "engine/models/transformer.h"
#include "kernels/activation.h"

namespace stagecoach::engine {

// How the library transformers describes and names the models of one architecture. A file of this
// folder has everything about one.
struct TransformerFiles {
  TransformerFamily family;
  std::vector<absl::string_view> model_types;  // of config.json, that are this architecture
  const char* prefix;                          // of all tensors but the head's
  const char* token_table;                     // the tensor of the embedding
  const char* head = "lm_head.weight";         // that of the last layer
  // The keys of dropout, and their values if they are absent.
  std::vector<std::pair<const char*, double>> dropout;
  // Reads a config.json, except for the meanings of tokens, for which it sets the usual ones.
  absl::StatusOr<Transformer> (*read)(const nlohmann::json& document, absl::string_view model_type,
                                      base::ObjectReader& reader);
  // Returns a config.json without the keys that all have.
  nlohmann::ordered_json (*config)(const Transformer& model);
  std::vector<HuggingFaceParameter> (*parameters)(const Transformer& model);
};
const TransformerFiles& Gpt2Files();
const TransformerFiles& LlamaFiles();
const TransformerFiles& OptFiles();
const TransformerFiles& GptNeoXFiles();
const TransformerFiles& GemmaFiles();

inline constexpr base::Int64Range kTransformerExtents = {.min = 1, .max = kMaxTransformerExtent};

// Reads the key of an activation by its name in transformers. Absent: `otherwise`.
absl::StatusOr<kernels::Activation> ReadActivation(base::ObjectReader& reader, const char* key,
                                                   kernels::Activation otherwise);
// Returns such a name.
const char* NameInTransformers(kernels::Activation activation);

// Checks a key of a config.json whose value must be absent, null, or one of those.
absl::Status ExpectText(const nlohmann::json& document, base::ObjectReader& reader, const char* key,
                        const std::vector<std::string>& expected);
// Does the same for a key whose other values ask for something that there is no layer for.
absl::Status ExpectAbsentOr(const nlohmann::json& document, base::ObjectReader& reader,
                            const char* key, const nlohmann::json& expected);

// Names of linear layers, and their outputs.
using Linears = std::vector<std::pair<std::string, int64_t>>;

// Gathers the parameters of a model in the order of its layers.
class ParameterNames {
 public:
  // `gain_offset`: of the gains of norms (HuggingFacePiece).
  explicit ParameterNames(int64_t width, float gain_offset = 0.0F)
      : width_(width), gain_offset_(gain_offset) {}

  void NextLayer() { ++layer_; }
  void Add(absl::string_view name, std::vector<HuggingFacePiece> pieces);
  void AddPlain(absl::string_view name, absl::string_view tensor, std::vector<int64_t> shape);
  // Adds the gain of a norm, which has as many numbers as it normalizes.
  void AddGain(absl::string_view name, absl::string_view tensor, int64_t numbers);
  // Adds the gain and offset of a norm.
  void AddNorm(absl::string_view inside, absl::string_view tensor, bool has_offset);
  // Adds a layer with a bias, and weights laid out like ours.
  void AddConv1D(int inside, absl::string_view tensor, int64_t inputs, int64_t outputs);
  // Adds several linear layers, of the given names and outputs, as one. `order`: of the outputs of
  // each (HuggingFacePiece).
  void AddLinears(const absl::AlphaNum& inside, int64_t inputs, const Linears& linears,
                  bool has_bias = false, const std::vector<int64_t>& order = {});

  // Adds the table of positions, of which a sample has a part.
  void AddPositions(const Transformer& model, absl::string_view tensor);
  // Adds the last layer, whose weight is the embedding's table if it is tied.
  void AddHead(const Transformer& model);

  std::vector<HuggingFaceParameter> Take() && { return std::move(parameters_); }

 private:
  int64_t width_;
  float gain_offset_;
  int layer_ = 0;
  std::vector<HuggingFaceParameter> parameters_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_FAMILIES_FAMILY_H_
