#include "engine/data/feed.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/bfloat16.h"
#include "partition/cost/layer_cost.h"

namespace stagecoach::engine {

using kernels::DType;
using kernels::LossTerms;
using kernels::Tensor;

namespace {

// Maximum number of threads that gather the samples of a step, and the bytes that justify one: a
// thread costs about as much as gathering 100 KiB.
constexpr int kMaxThreads = 4;
constexpr int64_t kBytesOfThread = 256 << 10;

// Checks the target of a row with `answers`, as read from a data set.
absl::Status CheckLabels(int64_t row, const TargetSpec& target, int64_t answers,
                         const std::byte* place) {
  if (target.kind != TargetSpec::Kind::kClasses) return absl::OkStatus();
  const auto* const labels = reinterpret_cast<const int32_t*>(place);
  const int64_t count = target.shape.elements();
  const int64_t missing = std::count(labels, labels + count, kernels::kNoLabel);
  for (int64_t i = 0; i < count; ++i) {
    if (labels[i] >= 0 && labels[i] < target.classes) continue;
    if (labels[i] == kernels::kNoLabel && count - missing == answers) continue;
    const std::string position =
        target.shape.rank() == 0 ? "" : absl::StrCat(", position ", i, ",");
    return absl::InvalidArgumentError(
        absl::StrCat("label of row ", row, position, " is ", labels[i], ", expected 0 to ",
                     target.classes - 1, ": the loss is of ", target.classes, " classes"));
  }
  return absl::OkStatus();
}

// Checks rows of `count` ids each, as read from a data set.
absl::Status CheckIds(absl::Span<const int64_t> rows, int64_t count, int64_t vocabulary,
                      const std::byte* place) {
  const auto* ids = reinterpret_cast<const int32_t*>(place);
  for (const int64_t row : rows) {
    for (int64_t i = 0; i < count; ++i, ++ids) {
      if (*ids >= 0 && *ids < vocabulary) continue;
      return absl::InvalidArgumentError(absl::StrCat("id of row ", row, ", position ", i, ", is ",
                                                     *ids, ", expected 0 to ", vocabulary - 1,
                                                     ": the vocabulary has ", vocabulary, " ids"));
    }
  }
  return absl::OkStatus();
}

// Checks the first positions of a row's documents, as read from a data set.
absl::Status CheckDocuments(int64_t row, absl::Span<const int32_t> first_positions) {
  for (size_t t = 0; t < first_positions.size(); ++t) {
    const int32_t at_least = t == 0 ? 0 : first_positions[t - 1];
    if (first_positions[t] >= at_least && static_cast<size_t>(first_positions[t]) <= t) continue;
    return absl::InvalidArgumentError(absl::StrCat("document of row ", row, ", position ", t,
                                                   ", begins at ", first_positions[t],
                                                   ", expected ", at_least, " to ", t));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const int64_t> Batch::RowsOf(int micro_batch, int64_t micro_batch_rows,
                                        int count) const {
  if (!ends.empty()) {
    const auto end_of = [&](int i) {
      if (i < 0) return int64_t{0};
      return ends[std::min(static_cast<size_t>(i), ends.size() - 1)];
    };
    const int64_t begin = end_of(micro_batch - 1);
    return rows.subspan(static_cast<size_t>(begin),
                        static_cast<size_t>(end_of(micro_batch + count - 1) - begin));
  }
  const auto size = static_cast<size_t>(micro_batch_rows);
  const size_t begin = static_cast<size_t>(first_micro_batch + micro_batch) * size;
  return rows.subspan(std::min(begin, rows.size()), size * static_cast<size_t>(count));
}

LossTerms Batch::TermsOf(int micro_batch, int64_t micro_batch_rows) const {
  return {.valid_samples = wants_loss ? std::ssize(RowsOf(micro_batch, micro_batch_rows)) : 0,
          .scale = static_cast<float>(1.0 / (rows.empty() ? 1.0 : weight()))};
}

double Batch::weight() const {
  if (answer_weight > 0.0) {
    return answer_weight / static_cast<double>(data->spec().target.answers());
  }
  if (answers == 0) return static_cast<double>(rows.size());
  return data->spec().target.SamplesOf(answers);
}

int64_t BytesOfTargets(const TargetSpec& target, int64_t micro_batch_rows) {
  return partition::AlignTensor(micro_batch_rows * target.bytes() +
                                static_cast<int64_t>(sizeof(LossTerms)));
}

int64_t BytesOfDocuments(int64_t positions, int64_t micro_batch_rows) {
  return partition::AlignTensor(positions * micro_batch_rows * SizeOf(DType::kInt32));
}

absl::StatusOr<Feed> Feed::Create(kernels::Device& device, const Options& options) {
  Feed feed(device, options);
  // A device of the host has threads of its own, and a limit on them.
  if (!device.memory_is_host()) feed.threads_ = std::min(kMaxThreads, base::AvailableCpus());
  if (feed.rounds()) {
    ASSIGN_OR_RETURN(
        feed.row_, device.AllocateHost(feed.threads_ * options.features * SizeOf(DType::kFloat32)));
  }
  if (device.memory_is_host()) return feed;
  const int64_t places = 2 * int64_t{options.micro_batches};
  ASSIGN_OR_RETURN(feed.staged_features_, device.AllocateHost(places * feed.feature_bytes()));
  ASSIGN_OR_RETURN(feed.staged_loss_, device.AllocateHost(places * feed.loss_bytes()));
  ASSIGN_OR_RETURN(feed.staged_documents_,
                   device.AllocateHost(options.micro_batches * feed.document_bytes()));
  feed.prepared_rows_.reserve(
      static_cast<size_t>(options.micro_batches * options.micro_batch_rows));
  return feed;
}

int64_t Feed::feature_bytes() const {
  return options_.micro_batch_rows * options_.features * SizeOf(feature_type());
}

DType Feed::feature_type() const { return has_ids() ? DType::kInt32 : device_->activation_type(); }

bool Feed::rounds() const { return !has_ids() && feature_type() != DType::kFloat32; }

int64_t Feed::loss_bytes() const {
  return options_.feeds_loss ? BytesOfTargets(options_.target, options_.micro_batch_rows) : 0;
}

int64_t Feed::document_bytes() const {
  return BytesOfDocuments(options_.document_positions, options_.micro_batch_rows);
}

LossTerms* Feed::TermsIn(std::byte* place) const {
  return reinterpret_cast<LossTerms*>(place + loss_bytes()) - 1;
}

Tensor Feed::DocumentsOf(int micro_batch) const {
  if (options_.document_positions == 0) return {};
  return {documents_ + micro_batch * document_bytes(), DType::kInt32,
          kernels::Shape{options_.micro_batch_rows, options_.document_positions}};
}

Tensor Feed::TargetsOf(int micro_batch) const {
  if (options_.target.kind == TargetSpec::Kind::kNone) return {};
  return {loss_ + micro_batch * loss_bytes(), options_.target.type(),
          options_.target.shape.Batched(options_.micro_batch_rows)};
}

const LossTerms* Feed::TermsOf(int micro_batch) const {
  return TermsIn(loss_ + micro_batch * loss_bytes());
}

std::byte* Feed::PlaceOf(const kernels::HostBuffer& staging, int micro_batch, int64_t bytes) const {
  return staging.data() + (int64_t{half_} * options_.micro_batches + micro_batch) * bytes;
}

bool Feed::IsPrepared(const Batch& batch, int micro_batch) const {
  if (batch.data != prepared_data_) return false;
  const Batch prepared = {.data = prepared_data_, .rows = prepared_rows_};
  return batch.RowsOf(micro_batch, options_.micro_batch_rows) ==
         prepared.RowsOf(micro_batch, options_.micro_batch_rows);
}

absl::Status Feed::Prepare(const Batch& next) {
  prepared_data_ = nullptr;
  released_ = 0;
  if (next.data != nullptr && options_.features > 0) {
    next.data->WillRead(next.RowsOf(0, options_.micro_batch_rows, options_.micro_batches));
  }
  const bool has_places = staged_features_.bytes() + staged_loss_.bytes() > 0;
  if (next.data == nullptr || !has_places) return absl::OkStatus();
  half_ = 1 - half_;  // what this run uses may not have been copied yet
  if (!WriteAll(next)) return absl::OkStatus();
  if (ahead_ != nullptr) {
    RETURN_IF_ERROR(device_->stream().CopyAhead(ahead_,
                                                PlaceOf(staged_features_, 0, feature_bytes()),
                                                options_.micro_batches * feature_bytes()));
  }
  if (loss_ != nullptr) {
    RETURN_IF_ERROR(device_->stream().CopyAhead(loss_, PlaceOf(staged_loss_, 0, loss_bytes()),
                                                options_.micro_batches * loss_bytes()));
  }
  prepared_data_ = next.data;
  prepared_rows_.clear();
  for (int micro_batch = 0; micro_batch < options_.micro_batches; ++micro_batch) {
    const absl::Span<const int64_t> rows = next.RowsOf(micro_batch, options_.micro_batch_rows);
    prepared_rows_.insert(prepared_rows_.end(), rows.begin(), rows.end());
  }
  return absl::OkStatus();
}

bool Feed::WriteAll(const Batch& batch) {
  for (int i = 0; i < options_.micro_batches && options_.feeds_loss; ++i) {
    if (!WriteLoss(batch, i, PlaceOf(staged_loss_, i, loss_bytes())).ok()) return false;
  }
  if (options_.features == 0) return true;
  std::byte* const place = PlaceOf(staged_features_, 0, feature_bytes());
  return WriteFeatures(batch, 0, options_.micro_batches, place).ok();
}

absl::Status Feed::Features(const Batch& batch, int micro_batch, const Tensor& x) {
  if (device_->memory_is_host()) {
    return WriteFeatures(batch, micro_batch, 1, static_cast<std::byte*>(x.data));
  }
  kernels::Stream& stream = device_->stream();
  if (ahead_ != nullptr && IsPrepared(batch, micro_batch)) {
    return stream.Copy(x.data, ahead_ + micro_batch * x.bytes(), x.bytes());
  }
  std::byte* const place = PlaceOf(staged_features_, micro_batch, x.bytes());
  RETURN_IF_ERROR(WriteFeatures(batch, micro_batch, 1, place));
  return stream.CopyFromHost(x.data, place, x.bytes());
}

absl::Status Feed::Loss(const Batch& batch, int micro_batch) {
  std::byte* const to = loss_ + micro_batch * loss_bytes();
  if (device_->memory_is_host()) return WriteLoss(batch, micro_batch, to);
  std::byte* const place = PlaceOf(staged_loss_, micro_batch, loss_bytes());
  // Batches of the same rows here may have other rows elsewhere, which change the scale.
  const LossTerms terms = batch.TermsOf(micro_batch, options_.micro_batch_rows);
  const bool is_there = IsPrepared(batch, micro_batch) && *TermsIn(place) == terms;
  if (is_there) return absl::OkStatus();
  RETURN_IF_ERROR(WriteLoss(batch, micro_batch, place));
  return device_->stream().CopyFromHost(to, place, loss_bytes());
}

absl::Status Feed::Documents(const Batch& batch, int micro_batch) {
  const Tensor documents = DocumentsOf(micro_batch);
  if (documents.empty()) return absl::OkStatus();
  const bool is_host = device_->memory_is_host();
  std::byte* const place = is_host ? static_cast<std::byte*>(documents.data)
                                   : staged_documents_.data() + micro_batch * document_bytes();
  const auto positions = static_cast<size_t>(options_.document_positions);
  auto* first_positions = reinterpret_cast<int32_t*>(place);
  std::memset(place, 0, static_cast<size_t>(documents.bytes()));
  for (const int64_t row : batch.RowsOf(micro_batch, options_.micro_batch_rows)) {
    batch.data->CopyDocuments(row, absl::MakeSpan(first_positions, positions));
    RETURN_IF_ERROR(CheckDocuments(row, absl::MakeConstSpan(first_positions, positions)));
    first_positions += positions;
  }
  if (is_host) return absl::OkStatus();
  return device_->stream().CopyFromHost(documents.data, place, documents.bytes());
}

absl::Status Feed::Release() {
  if (staged_features_.bytes() + staged_loss_.bytes() == 0) return absl::OkStatus();
  if (++released_ < options_.micro_batches) return absl::OkStatus();
  released_ = 0;
  return device_->stream().AllowCopyAhead();
}

absl::Status Feed::WriteFeatures(const Batch& batch, int micro_batch, int count,
                                 std::byte* place) const {
  const int64_t count_rows = count * options_.micro_batch_rows;
  const absl::Span<const int64_t> rows =
      batch.RowsOf(micro_batch, options_.micro_batch_rows, count);
  const int64_t row_bytes = options_.features * SizeOf(feature_type());
  // Rows of this run that come later; those of the next run are announced by Prepare.
  if (count < options_.micro_batches) {
    batch.data->WillRead(batch.RowsOf(micro_batch, options_.micro_batch_rows, count));
    batch.data->WillRead(batch.RowsOf(micro_batch + count, options_.micro_batch_rows,
                                      options_.micro_batches - micro_batch - count));
  }
  RoundedBytes rounded = {};
  if (rounds()) rounded = RoundedBytesOf(batch.data->spec().inputs.front());
  const int64_t parts =
      std::clamp<int64_t>(std::ssize(rows) * row_bytes / kBytesOfThread, 1, threads_);
  base::ForEachInParallel(parts, threads_, [&](int64_t part) {
    const int64_t end = std::ssize(rows) * (part + 1) / parts;
    for (int64_t i = std::ssize(rows) * part / parts; i < end; ++i) {
      const auto row = absl::MakeSpan(place + i * row_bytes, static_cast<size_t>(row_bytes));
      WriteRow(*batch.data, rows[static_cast<size_t>(i)], rounded,
               row_.data() + part * row_.bytes() / threads_, row);
    }
  });
  std::memset(place + std::ssize(rows) * row_bytes, 0,
              static_cast<size_t>((count_rows - std::ssize(rows)) * row_bytes));
  RETURN_IF_ERROR(batch.data->ReadStatus());
  return has_ids() ? CheckIds(rows, options_.features, options_.vocabulary, place)
                   : absl::OkStatus();
}

void Feed::WriteRow(const Dataset& data, int64_t row, const RoundedBytes& rounded,
                    std::byte* scratch, absl::Span<std::byte> out) const {
  const auto features = static_cast<size_t>(options_.features);
  if (has_ids()) return data.CopyInput(0, row, out);
  if (!rounds()) {
    return data.CopyNumbers(0, row, absl::MakeSpan(reinterpret_cast<float*>(out.data()), features));
  }
  auto* const place = reinterpret_cast<uint16_t*>(out.data());
  // Bytes are never widened to float32: for an image, that would be most of the work.
  if (data.spec().inputs.front().type == DType::kUint8) {
    const auto bytes = absl::MakeSpan(scratch, features);
    data.CopyInput(0, row, bytes);
    std::transform(bytes.begin(), bytes.end(), place,
                   [&](std::byte byte) { return rounded[std::to_integer<size_t>(byte)]; });
    return;
  }
  const auto values = absl::MakeSpan(reinterpret_cast<float*>(scratch), features);
  data.CopyNumbers(0, row, values);
  std::transform(values.begin(), values.end(), place, kernels::ToBfloat16);
}

Feed::RoundedBytes Feed::RoundedBytesOf(const TensorSpec& input) {
  RoundedBytes rounded = {};
  std::transform(input.value_of_byte.begin(), input.value_of_byte.end(), rounded.begin(),
                 kernels::ToBfloat16);
  return rounded;
}

absl::Status Feed::WriteLoss(const Batch& batch, int micro_batch, std::byte* place) const {
  *TermsIn(place) = batch.TermsOf(micro_batch, options_.micro_batch_rows);
  const bool has_targets = batch.wants_loss && options_.target.kind != TargetSpec::Kind::kNone;
  if (!has_targets) return absl::OkStatus();
  const int64_t bytes = options_.target.bytes();
  for (const int64_t row : batch.RowsOf(micro_batch, options_.micro_batch_rows)) {
    batch.data->CopyTarget(row, absl::MakeSpan(place, static_cast<size_t>(bytes)));
    RETURN_IF_ERROR(CheckLabels(row, options_.target, batch.data->AnswersOf(row), place));
    place += bytes;
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
