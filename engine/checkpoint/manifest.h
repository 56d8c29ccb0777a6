#ifndef STAGECOACH_ENGINE_CHECKPOINT_MANIFEST_H_
#define STAGECOACH_ENGINE_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/checkpoint/metrics.h"
#include "engine/data/encoding.h"
#include "engine/nn/layer.h"
#include "engine/runtime/stage/optimizer.h"
#include "kernels/quantized_matrix.h"
#include "kernels/tensor.h"
#include "partition/io/plan_file.h"

namespace stagecoach::engine {

// The position of a run in its data. The samples of an epoch (Dataset::ForEpoch), and their order
// (EpochOrder), follow from seed and epoch, so this is all that is needed.
struct DataPosition {
  int epoch = 1;                   // counts from 1
  int64_t rows = 0;                // of this epoch that have been trained on
  double loss_sum = 0.0;           // over this epoch's steps: of each, mean loss x Batch::weight
  int64_t correct = 0;             // among its rows
  int64_t answers = 0;             // of its rows that were not skipped; 0: unknown, in old files
  std::string losses_hash;         // FitResult::step_losses_hash so far
  std::optional<Metrics> metrics;  // of these parameters, if they have been evaluated
  int64_t skipped_rows = 0;        // those of `rows` in steps that were skipped (OnNonFinite)
  int64_t skipped_steps = 0;       // of all epochs
  // Of all evaluations of the run: the best value of the metric `best_by`, and how many have
  // passed since it.
  std::string best_by = "test_loss";
  std::optional<double> best;
  int64_t evaluations_since_best = 0;

  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

// An option that a run was started with, as its program understands it.
struct SavedOption {
  std::string name;       // "--width"
  std::string value;      // "2304"
  bool is_given = false;  // by the user; otherwise a default

  friend bool operator==(const SavedOption&, const SavedOption&) = default;
};

// A saved file of tensors (shard_files.h). Hashes are base::Hasher's.
struct SavedFile {
  struct Tensor {
    std::string name;
    kernels::Shape shape;  // of its values
    std::optional<kernels::QuantizedMatrix> quantized = {};
    std::string hash;

    // Returns the form in which it is in the file, without data.
    kernels::Tensor stored() const {
      return StoredForm(shape, quantized, kernels::DType::kFloat32);
    }
    friend bool operator==(const Tensor&, const Tensor&) = default;
  };
  std::string name;
  int64_t bytes = 0;
  std::string hash;
  std::vector<Tensor> tensors;

  friend bool operator==(const SavedFile&, const SavedFile&) = default;
};

// The contents of a checkpoint besides the tensors: all that is needed to resume, and what the
// tensors' files must contain. A file "manifest.json".
struct Manifest {
  std::string program;   // that wrote it: "stagecoach 0.4.0"
  std::string saved_at;  // UTC, RFC 3339
  int64_t step = 0;      // steps completed
  int64_t samples = 0;   // in all steps completed
  DataPosition position;
  uint64_t seed = 1;    // of the parameters
  Optimizer optimizer;  // without checks_gradients: a run may resume with or without it
  std::string device;   // "cpu"
  std::string precision;

  std::vector<std::string> layers;  // their descriptions
  kernels::Shape input, output;     // of one sample
  std::string loss;
  std::string model_source;  // text from which the model can be made again; empty: unknown
  DataEncoding encoding;     // of the data; empty: unknown
  DataFingerprint data;      // that it was trained and tested on; empty: unknown
  partition::PlanFile plan;  // by which it was trained; resuming may use another
  std::vector<SavedOption> options;

  std::vector<SavedFile> files;

  // Returns null if there is none of that name.
  const SavedFile* FindFile(absl::string_view name) const;
  // Returns what the model tells apart, at each position if there are several.
  int64_t outputs() const { return output.rank() == 0 ? 1 : output.dim(output.rank() - 1); }

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Is the inverse of ParseManifest. Pre-condition: texts are UTF-8.
std::string ToJson(const Manifest& manifest);

// Returns the value of an option of the run; "": it had none.
std::string SavedOptionOf(const Manifest& manifest, absl::string_view name);

// InvalidArgument says where and what is wrong. File names never lead out of a folder. Safe on
// hostile input.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

// Do the same for the position alone.
std::string ToText(const DataPosition& position);
absl::StatusOr<DataPosition> ParseDataPosition(absl::string_view text);

// Do the same for the files alone, for processes that each have hashed some of them.
std::string ToJson(absl::Span<const SavedFile> files);
absl::StatusOr<std::vector<SavedFile>> ParseSavedFiles(absl::string_view text);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_MANIFEST_H_
