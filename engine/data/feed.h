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
#include "kernels/ops/loss_terms.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Samples of one step: rows of a data set, cut into equal micro-batches in order. Fewer than a
// whole batch only in evaluation: the missing rows at the end are padding. Each replica takes
// consecutive micro-batches, which it counts from 0.
struct Batch {
  const Dataset* data = nullptr;
  absl::Span<const int64_t> rows;
  // Of which run it is and the number of its first sample: SampleNumbers says how they count.
  int64_t step = 0;
  int64_t first_sample = 0;
  int first_micro_batch = 0;   // of this replica
  bool wants_loss = true;      // else the data need not have targets, and no sample is valid
  bool wants_outputs = false;  // what the last layer gives, for the host
  // Of a model that generates, in place of outputs: the id that follows the first row.
  bool wants_choice = false;
  // That id of the last run is this one's, at the position after that one's: both are where they
  // are read, and nothing is fed.
  bool continues = false;

  // The rows of one of this replica's micro-batches, or of `count` from there on, without padding.
  absl::Span<const int64_t> RowsOf(int micro_batch, int64_t micro_batch_rows, int count = 1) const;
  kernels::LossTerms TermsOf(int micro_batch, int64_t micro_batch_rows) const;
};

// The targets of a micro-batch, with its LossTerms behind them: rounded up by AlignTensor.
int64_t BytesOfTargets(const TargetSpec& target, int64_t micro_batch_rows);

// Brings the samples of a step to a device, and what a loss is told of them. Where the host cannot
// write the device's memory, each micro-batch has two places in host memory from which it is copied
// in the stream's order, so that feeding never waits: one is for the run of the schedule at hand,
// the other for the next run, if that is prepared meanwhile. A run that was prepared is copied
// ahead as a whole, beside the work of the run before, to places in the device's memory. Up to four
// threads gather its features, so that a step need not wait for its successor's samples.
class Feed {
 public:
  struct Options {
    int64_t micro_batch_rows = 1;
    int micro_batches = 1;
    int64_t features = 0;     // 0: none are fed
    int64_t vocabulary = 0;   // above 0: they are ids below it rather than numbers
    bool feeds_loss = false;  // targets, if there are any, and terms
    TargetSpec target;
  };
  Feed() = default;  // feeds nothing
  static absl::StatusOr<Feed> Create(kernels::Device& device, const Options& options);

  // Where the device has feature_bytes() for each micro-batch of a step, for features that are
  // copied ahead; to be called once, before all that follows, if features are fed to a device whose
  // memory is not the host's.
  void PlaceAhead(std::byte* place) { ahead_ = place; }
  int64_t feature_bytes() const;  // of a micro-batch
  // Where the device has BytesOfTargets for each micro-batch of a step; to be called once, before
  // all that follows, if a loss is fed. Work that reads the two of a micro-batch finds them at the
  // same address in every run, so it can be recorded.
  void PlaceTargets(std::byte* place) { loss_ = place; }
  kernels::Tensor TargetsOf(int micro_batch) const;  // (rows, shape of a target); empty with kNone
  const kernels::LossTerms* TermsOf(int micro_batch) const;

  // Jobs of the device's stream; micro-batches in any order, each once in a run. Between two calls
  // for the same micro-batch the stream must have finished.
  //   x (rows, features) of the activation type or, of ids, int32; padding is 0
  // Loss makes TargetsOf and TermsOf those of the batch; targets of padding are undefined.
  // InvalidArgument for an id outside the vocabulary, or a label outside [0, classes) of the
  // target: a data set may be a user's, and operations on a device check neither.
  absl::Status Features(const Batch& batch, int micro_batch, const kernels::Tensor& x);
  absl::Status Loss(const Batch& batch, int micro_batch);
  // Says that all that reads what a micro-batch was fed has been issued: once in a run for each, if
  // anything is fed. What comes next may overwrite it.
  absl::Status Release();

  // Does the host's part of the next run while the device is busy with this one, and copies ahead
  // what that is fed: a job of the device's stream, after this run's calls of the functions above.
  // If that run has another batch after all, this was for nothing. The data must stay as it is
  // until then. No data: nothing is known of the next run. Ids and labels that are refused are no
  // error here: the batch stays unprepared, and the error is that of its own run.
  absl::Status Prepare(const Batch& next);

 private:
  Feed(kernels::Device& device, const Options& options) : device_(&device), options_(options) {}

  // The bfloat16 that each byte of an input stands for (TensorSpec::value_of_byte).
  using RoundedBytes = std::array<uint16_t, 256>;
  static RoundedBytes RoundedBytesOf(const TensorSpec& input);

  // Of `count` micro-batches and of one, in the form in which the device takes them.
  absl::Status WriteFeatures(const Batch& batch, int micro_batch, int count,
                             std::byte* place) const;
  absl::Status WriteLoss(const Batch& batch, int micro_batch, std::byte* place) const;
  // `scratch` is a row of row_.
  void WriteRow(const Dataset& data, int64_t row, const RoundedBytes& rounded, std::byte* scratch,
                absl::Span<std::byte> out) const;
  bool WriteAll(const Batch& batch);  // of every micro-batch; false: an id or a label is refused
  // This run's place of `bytes` bytes for a micro-batch.
  std::byte* PlaceOf(const kernels::HostBuffer& staging, int micro_batch, int64_t bytes) const;
  bool IsPrepared(const Batch& batch, int micro_batch) const;
  // What the loss is fed of one micro-batch, the terms last; 0 if there is no loss.
  int64_t loss_bytes() const;
  kernels::LossTerms* TermsIn(std::byte* place) const;
  bool has_ids() const { return options_.vocabulary > 0; }
  kernels::DType feature_type() const;
  bool rounds() const;  // numbers, to the activation type

  kernels::Device* device_ = nullptr;
  Options options_;
  // Empty where the device's memory is the host's.
  kernels::HostBuffer staged_features_, staged_loss_;
  int half_ = 0;                // of both, which this run uses
  std::byte* ahead_ = nullptr;  // null where features are not copied ahead
  std::byte* loss_ = nullptr;   // null where no loss is fed
  int released_ = 0;            // micro-batches of this run
  const Dataset* prepared_data_ = nullptr;
  std::vector<int64_t> prepared_rows_;
  int threads_ = 1;          // that gather features
  kernels::HostBuffer row_;  // (threads, features) float32, or bytes, before they are rounded
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FEED_H_
