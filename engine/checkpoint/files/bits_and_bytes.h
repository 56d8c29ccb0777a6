#ifndef STAGECOACH_ENGINE_CHECKPOINT_FILES_BITS_AND_BYTES_H_
#define STAGECOACH_ENGINE_CHECKPOINT_FILES_BITS_AND_BYTES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/system/file.h"
#include "base/system/system_calls.h"
#include "engine/checkpoint/files/safetensors.h"
#include "kernels/quantized_matrix.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Matrices as the library bitsandbytes saves them: (outputs, inputs), in several tensors. A matrix
// "X.weight" in NF4 has
//   X.weight                     uint8: two codes a byte
//   X.weight.absmax              a scale for each block: uint8 or, without double quantization,
//                                float32
//   X.weight.nested_absmax, X.weight.nested_quant_map    with double quantization
//   X.weight.quant_map           the levels
//   X.weight.quant_state.bitsandbytes__nf4               a text in JSON
// and one in int8 has
//   X.weight                     int8
//   X.SCB                        a scale for each output
//   X.weight_format              the order of the codes: row after row
// bitsandbytes rounds values to the type that the weights once had, and multiplies some inputs of
// int8 apart, by weights that have the same codes; here values are float32, and inputs are alike.

// A tensor in a file.
struct TensorInFile {
  const base::FileReader* file = nullptr;  // null: there is none of that name
  SafetensorsEntry entry;
};
using TensorFinder = std::function<TensorInFile(absl::string_view name)>;

// A matrix that they have, of which the finder outlives this.
class BitsAndBytesMatrix {
 public:
  // Returns the name of the matrix, "X.weight", of which `tensor` is one of the others; "" if it is
  // none.
  static std::string MatrixOf(absl::string_view tensor);
  // Returns whether the tensor X.weight has the codes of a matrix.
  static bool IsOne(const TensorFinder& find, absl::string_view name);

  // InvalidArgument, naming the tensor: one is missing or has another form than it should, or the
  // matrix has another shape, or other blocks or levels.
  static absl::StatusOr<BitsAndBytesMatrix> Open(const TensorFinder& find, absl::string_view name,
                                                 int64_t inputs, int64_t outputs);

  kernels::Quantization kind() const { return kind_; }
  absl::StatusOr<kernels::BitsAndBytesPart> Read() const;
  // Writes the values, (inputs, outputs), into rows that are `stride` apart, float32 or bfloat16:
  // those of output o into column order[o] or, without an order, o.
  absl::Status ReadValues(absl::Span<const int64_t> order, const kernels::Tensor& values,
                          int64_t stride) const;

 private:
  explicit BitsAndBytesMatrix(const TensorFinder& find) : find_(find) {}

  // Returns the values of a tensor of that form.
  template <typename T>
  absl::StatusOr<std::vector<T>> ReadTensor(const std::string& name, kernels::DType type,
                                            int64_t elements) const;
  absl::Status ReadState();
  absl::Status ParseState(absl::string_view text);
  absl::Status CheckLevels() const;
  absl::Status CheckFormat() const;

  TensorFinder find_;
  std::string name_;
  int64_t inputs_ = 0, outputs_ = 0;
  kernels::Quantization kind_ = kernels::Quantization::kNf4;
  float offset_ = 0.0F;
};

// A matrix that is written so, (inputs, outputs) in ours.
class BitsAndBytesWriter {
 public:
  BitsAndBytesWriter(std::string name, kernels::Quantization kind, int64_t inputs, int64_t outputs)
      : name_(std::move(name)), matrix_{.kind = kind, .inputs = inputs, .outputs = outputs} {}

  // Returns its tensors, in the order in which Append appends their bytes.
  std::vector<SafetensorsEntry> entries() const;
  // Pre-condition: as many values as it has.
  absl::Status Append(absl::Span<const float> values, const base::AppendFunction& append) const;

 private:
  std::string State(float offset) const;  // of kStateBytes

  const std::string name_;
  const kernels::QuantizedMatrix matrix_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_FILES_BITS_AND_BYTES_H_
