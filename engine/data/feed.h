#ifndef STAGECOACH_ENGINE_DATA_FEED_H_
#define STAGECOACH_ENGINE_DATA_FEED_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/dataset.h"
#include "kernels/device.h"
#include "kernels/loss_terms.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// The samples of one step: rows of a data set, cut into equal micro-batches in order. Only in
// evaluation are there fewer than a whole batch: the missing rows at the end are padding. Each
// replica takes consecutive micro-batches, which it counts from 0.
struct Batch {
  const Dataset* data = nullptr;
  absl::Span<const int64_t> rows;
  // The answers that the rows have (CountAnswers); 0: all that they can have.
  int64_t answers = 0;
  // What these weigh (WeighAnswers), if a loss weighs classes; 0: as many as there are.
  double answer_weight = 0.0;
  // For a model that generates: how many rows come before the end of each micro-batch, as far as
  // these have rows; empty: each has as many as it can.
  absl::Span<const int64_t> ends = {};
  // And each row is of another sequence (LayerContext::rows_are_sequences), rather than those of a
  // micro-batch consecutive positions of one.
  bool rows_are_sequences = false;
  // Of which run it is and the number of its first sample: SampleNumbers says how they count.
  int64_t step = 0;
  int64_t first_sample = 0;
  int first_micro_batch = 0;   // of this replica
  bool wants_loss = true;      // otherwise the data need not have targets, and no sample is valid
  bool wants_outputs = false;  // the last layer's outputs, for the host
  // For a model that generates, in place of outputs: the id that follows the first row.
  bool wants_choice = false;
  // The id chosen in the last run is this run's input, at the next position: both are already where
  // they are read, and nothing is fed.
  bool continues = false;

  // Returns the rows of one of this replica's micro-batches, or of `count` from there on, without
  // padding.
  absl::Span<const int64_t> RowsOf(int micro_batch, int64_t micro_batch_rows, int count = 1) const;
  kernels::LossTerms TermsOf(int micro_batch, int64_t micro_batch_rows) const;
  // Returns the number by which the sum of losses is divided, so that every answer of the step
  // counts alike, whatever row and micro-batch it is in: the number of rows, if they have all of
  // their answers.
  double weight() const;
};

// Returns the bytes of a micro-batch's targets, followed by its LossTerms: rounded up by
// AlignTensor.
int64_t BytesOfTargets(const TargetSpec& target, int64_t micro_batch_rows);

// Returns the bytes of what a micro-batch's positions are told of their documents, rounded up by
// AlignTensor.
int64_t BytesOfDocuments(int64_t positions, int64_t micro_batch_rows);

// Brings the samples of a step to a device, with what a loss needs to know about them. If the host
// cannot write the device's memory, each micro-batch has two places in host memory from which it is
// copied in the stream's order, so that feeding never waits: one is for the current run of the
// schedule, the other for the next run, if that is prepared meanwhile. A run that was prepared is
// copied ahead as a whole, concurrently with the work of the run before, to places in the device's
// memory. Up to four threads gather its features, so that a step need not wait for its successor's
// samples.
class Feed {
 public:
  struct Options {
    int64_t micro_batch_rows = 1;
    int micro_batches = 1;
    int64_t features = 0;     // per sample; 0: none are fed
    int64_t vocabulary = 0;   // if positive, features are ids below it rather than numbers
    bool feeds_loss = false;  // targets, if there are any, and terms
    TargetSpec target;
    int64_t document_positions = 0;  // T, if each is told its document (Dataset); otherwise 0
  };
  Feed() = default;  // feeds nothing
  static absl::StatusOr<Feed> Create(kernels::Device& device, const Options& options);

  // Sets where the device has feature_bytes() for each micro-batch of a step, for features that are
  // copied ahead; to be called once, before everything below, if features are fed to a device whose
  // memory is not the host's.
  void PlaceAhead(std::byte* place) { ahead_ = place; }
  int64_t feature_bytes() const;  // of a micro-batch
  // Sets where the device has BytesOfTargets for each micro-batch of a step; to be called once,
  // before everything below, if a loss is fed. Work that reads the targets and terms of a
  // micro-batch finds them at the same address in every run, so it can be recorded.
  void PlaceTargets(std::byte* place) { loss_ = place; }
  // Likewise BytesOfDocuments for each micro-batch, if documents are fed.
  void PlaceDocuments(std::byte* place) { documents_ = place; }
  kernels::Tensor DocumentsOf(int micro_batch) const;  // (rows, T) int32; empty if none are fed
  kernels::Tensor TargetsOf(int micro_batch) const;  // (rows, shape of a target); empty with kNone
  const kernels::LossTerms* TermsOf(int micro_batch) const;

  // Feed a micro-batch; called as jobs of the device's stream, with micro-batches in any order,
  // each once per run. Between two calls for the same micro-batch the stream must have finished.
  //   x (rows, features) of the activation type or, for ids, int32; padding is 0
  // Loss sets TargetsOf and TermsOf to those of the batch; targets of padding are undefined.
  // Documents sets DocumentsOf, and does nothing if none are fed; a row of padding is one document.
  // InvalidArgument for an id outside the vocabulary, a label outside [0, classes) of the target,
  // a document that begins after one of its positions or before the one ahead of it, or a row with
  // other than Dataset::AnswersOf labels: a data set may be a user's, and operations
  // on a device check none of these.
  absl::Status Features(const Batch& batch, int micro_batch, const kernels::Tensor& x);
  absl::Status Loss(const Batch& batch, int micro_batch);
  absl::Status Documents(const Batch& batch, int micro_batch);
  // Declares that everything that reads what a micro-batch was fed has been issued: to be called
  // once per run for each, if anything is fed. What comes next may overwrite it.
  absl::Status Release();

  // Does the host's part of the next run while the device is busy with this one, and copies the
  // data that it is fed ahead: a job of the device's stream, after this run's calls of the
  // functions above. If that run has another batch after all, the work is discarded. The data must
  // not change until then. No data: nothing is known about the next run. Refused ids and labels are
  // no error here: the batch stays unprepared, and the error is that of its own run.
  absl::Status Prepare(const Batch& next);

 private:
  Feed(kernels::Device& device, const Options& options) : device_(&device), options_(options) {}

  // The bfloat16 value that each byte of an input stands for (TensorSpec::value_of_byte).
  using RoundedBytes = std::array<uint16_t, 256>;
  static RoundedBytes RoundedBytesOf(const TensorSpec& input);

  // Write the features of `count` micro-batches, and the loss of one, in the form in which the
  // device takes them.
  absl::Status WriteFeatures(const Batch& batch, int micro_batch, int count,
                             std::byte* place) const;
  absl::Status WriteLoss(const Batch& batch, int micro_batch, std::byte* place) const;
  // `scratch` is a row of row_.
  void WriteRow(const Dataset& data, int64_t row, const RoundedBytes& rounded, std::byte* scratch,
                absl::Span<std::byte> out) const;
  bool WriteAll(const Batch& batch);  // of every micro-batch; false: an id or a label is refused
  // Returns this run's place of `bytes` bytes for a micro-batch.
  std::byte* PlaceOf(const kernels::HostBuffer& staging, int micro_batch, int64_t bytes) const;
  bool IsPrepared(const Batch& batch, int micro_batch) const;
  // Returns the bytes that the loss is fed for one micro-batch, the terms last; 0 if there is no
  // loss.
  int64_t loss_bytes() const;
  kernels::LossTerms* TermsIn(std::byte* place) const;
  int64_t document_bytes() const;  // of a micro-batch
  bool has_ids() const { return options_.vocabulary > 0; }
  kernels::DType feature_type() const;
  bool rounds() const;  // numbers to the activation type

  kernels::Device* device_ = nullptr;
  Options options_;
  // Empty if the device's memory is the host's.
  kernels::HostBuffer staged_features_, staged_loss_;
  int half_ = 0;                // the half of both that this run uses
  std::byte* ahead_ = nullptr;  // null if features are not copied ahead
  std::byte* loss_ = nullptr;   // null if no loss is fed
  // Documents are small, and are never copied ahead: a run needs them to its end.
  kernels::HostBuffer staged_documents_;
  std::byte* documents_ = nullptr;
  int released_ = 0;  // micro-batches of this run
  const Dataset* prepared_data_ = nullptr;
  std::vector<int64_t> prepared_rows_;
  int threads_ = 1;          // that gather features
  kernels::HostBuffer row_;  // (threads, features) float32, or bytes, before they are rounded
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FEED_H_
