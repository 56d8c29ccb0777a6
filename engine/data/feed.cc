#include "engine/data/feed.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/bfloat16.h"

namespace stagecoach::engine {

using kernels::DType;
using kernels::Tensor;

absl::Span<const int64_t> Batch::RowsOf(int micro_batch, int64_t micro_batch_rows) const {
  const auto size = static_cast<size_t>(micro_batch_rows);
  const size_t begin = static_cast<size_t>(first_micro_batch + micro_batch) * size;
  return rows.subspan(std::min(begin, rows.size()), size);
}

absl::StatusOr<Feed> Feed::Create(kernels::Device& device, const Options& options) {
  Feed feed(device, options);
  if (feed.rounds()) {
    ASSIGN_OR_RETURN(feed.row_, device.AllocateHost(options.features * SizeOf(DType::kFloat32)));
  }
  if (device.memory_is_host()) return feed;
  const int64_t places = 2 * int64_t{options.micro_batches};
  ASSIGN_OR_RETURN(feed.features_, device.AllocateHost(places * feed.feature_bytes()));
  ASSIGN_OR_RETURN(feed.targets_, device.AllocateHost(places * feed.target_bytes()));
  feed.prepared_rows_.reserve(
      static_cast<size_t>(options.micro_batches * options.micro_batch_rows));
  return feed;
}

int64_t Feed::feature_bytes() const {
  return options_.micro_batch_rows * options_.features * SizeOf(feature_type());
}

DType Feed::feature_type() const {
  return options_.has_ids ? DType::kInt32 : device_->activation_type();
}

bool Feed::rounds() const { return !options_.has_ids && feature_type() != DType::kFloat32; }

int64_t Feed::target_bytes() const { return options_.micro_batch_rows * options_.target.bytes(); }

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
  fed_ = 0;
  const bool has_places = features_.bytes() + targets_.bytes() > 0;
  if (next.data == nullptr || !has_places) return absl::OkStatus();
  half_ = 1 - half_;  // what this run uses may not have been copied yet
  for (int micro_batch = 0; micro_batch < options_.micro_batches; ++micro_batch) {
    if (options_.features > 0) {
      WriteFeatures(next, micro_batch, PlaceOf(features_, micro_batch, feature_bytes()));
    }
    if (target_bytes() > 0) {
      WriteTargets(next, micro_batch, PlaceOf(targets_, micro_batch, target_bytes()));
    }
  }
  if (ahead_ != nullptr) {
    RETURN_IF_ERROR(device_->stream().CopyAhead(ahead_, PlaceOf(features_, 0, feature_bytes()),
                                                options_.micro_batches * feature_bytes()));
  }
  prepared_data_ = next.data;
  prepared_rows_.clear();
  for (int micro_batch = 0; micro_batch < options_.micro_batches; ++micro_batch) {
    const absl::Span<const int64_t> rows = next.RowsOf(micro_batch, options_.micro_batch_rows);
    prepared_rows_.insert(prepared_rows_.end(), rows.begin(), rows.end());
  }
  return absl::OkStatus();
}

absl::Status Feed::Features(const Batch& batch, int micro_batch, const Tensor& x) {
  if (device_->memory_is_host()) {
    WriteFeatures(batch, micro_batch, static_cast<std::byte*>(x.data));
    return absl::OkStatus();
  }
  kernels::Stream& stream = device_->stream();
  if (ahead_ != nullptr && IsPrepared(batch, micro_batch)) {
    RETURN_IF_ERROR(stream.Copy(x.data, ahead_ + micro_batch * x.bytes(), x.bytes()));
  } else {
    std::byte* const place = PlaceOf(features_, micro_batch, x.bytes());
    WriteFeatures(batch, micro_batch, place);
    RETURN_IF_ERROR(stream.CopyFromHost(x.data, place, x.bytes()));
  }
  return ++fed_ == options_.micro_batches ? stream.AllowCopyAhead() : absl::OkStatus();
}

absl::Status Feed::Targets(const Batch& batch, int micro_batch, const Tensor& targets) {
  if (device_->memory_is_host()) {
    WriteTargets(batch, micro_batch, static_cast<std::byte*>(targets.data));
    return absl::OkStatus();
  }
  std::byte* const place = PlaceOf(targets_, micro_batch, targets.bytes());
  if (!IsPrepared(batch, micro_batch)) WriteTargets(batch, micro_batch, place);
  return device_->stream().CopyFromHost(targets.data, place, targets.bytes());
}

void Feed::WriteFeatures(const Batch& batch, int micro_batch, std::byte* place) const {
  const absl::Span<const int64_t> rows = batch.RowsOf(micro_batch, options_.micro_batch_rows);
  const auto valid_rows = static_cast<int64_t>(rows.size());
  const int64_t row_bytes = options_.features * SizeOf(feature_type());
  for (int64_t i = 0; i < valid_rows; ++i) {
    std::byte* const row = place + i * row_bytes;
    const int64_t index = rows[static_cast<size_t>(i)];
    if (options_.has_ids) {
      batch.data->CopyInput(0, index, absl::MakeSpan(row, static_cast<size_t>(row_bytes)));
      continue;
    }
    const auto values = absl::MakeSpan(reinterpret_cast<float*>(rounds() ? row_.data() : row),
                                       static_cast<size_t>(options_.features));
    batch.data->CopyNumbers(0, index, values);
    if (rounds()) {
      std::transform(values.begin(), values.end(), reinterpret_cast<uint16_t*>(row),
                     kernels::ToBfloat16);
    }
  }
  std::memset(place + valid_rows * row_bytes, 0,
              static_cast<size_t>((options_.micro_batch_rows - valid_rows) * row_bytes));
}

void Feed::WriteTargets(const Batch& batch, int micro_batch, std::byte* place) const {
  const int64_t bytes = options_.target.bytes();
  for (const int64_t row : batch.RowsOf(micro_batch, options_.micro_batch_rows)) {
    batch.data->CopyTarget(row, absl::MakeSpan(place, static_cast<size_t>(bytes)));
    place += bytes;
  }
}

}  // namespace stagecoach::engine
