#include "engine/data/feed.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/bfloat16.h"

namespace stagecoach::engine {

using kernels::DType;
using kernels::Tensor;

int64_t Batch::ValidRows(int micro_batch, int64_t micro_batch_rows) const {
  const int64_t begin = micro_batch * micro_batch_rows;
  return std::clamp<int64_t>(static_cast<int64_t>(rows.size()) - begin, 0, micro_batch_rows);
}

absl::StatusOr<Feed> Feed::Create(kernels::Device& device, const Options& options) {
  Feed feed(device, options);
  if (device.memory_is_host()) return feed;
  const int64_t rows = options.micro_batches * options.micro_batch_rows;
  const DType type = device.activation_type();
  ASSIGN_OR_RETURN(feed.features_, device.AllocateHost(rows * options.features * SizeOf(type)));
  if (type != DType::kFloat32) {
    ASSIGN_OR_RETURN(feed.row_, device.AllocateHost(options.features * SizeOf(DType::kFloat32)));
  }
  if (options.feeds_labels) {
    ASSIGN_OR_RETURN(feed.labels_, device.AllocateHost(rows * SizeOf(DType::kInt32)));
  }
  return feed;
}

std::byte* Feed::PlaceOf(const kernels::HostBuffer& staging, int micro_batch,
                         const Tensor& tensor) const {
  if (device_->memory_is_host()) return static_cast<std::byte*>(tensor.data);
  return staging.data() + micro_batch * tensor.bytes();
}

absl::Status Feed::Deliver(const std::byte* place, const Tensor& tensor) {
  if (device_->memory_is_host()) return absl::OkStatus();
  return device_->stream().CopyFromHost(tensor.data, place, tensor.bytes());
}

absl::Status Feed::Features(const Batch& batch, int micro_batch, const Tensor& x) {
  std::byte* const place = PlaceOf(features_, micro_batch, x);
  const int64_t begin = micro_batch * options_.micro_batch_rows;
  const int64_t valid_rows = batch.ValidRows(micro_batch, options_.micro_batch_rows);
  const int64_t row_bytes = options_.features * SizeOf(x.dtype);
  const bool rounds = x.dtype != DType::kFloat32;
  for (int64_t i = 0; i < valid_rows; ++i) {
    std::byte* const row = place + i * row_bytes;
    const auto values = absl::MakeSpan(reinterpret_cast<float*>(rounds ? row_.data() : row),
                                       static_cast<size_t>(options_.features));
    batch.data->CopyFeatures(batch.rows[static_cast<size_t>(begin + i)], values);
    if (rounds) {
      std::transform(values.begin(), values.end(), reinterpret_cast<uint16_t*>(row),
                     kernels::ToBfloat16);
    }
  }
  std::memset(place + valid_rows * row_bytes, 0,
              static_cast<size_t>((options_.micro_batch_rows - valid_rows) * row_bytes));
  return Deliver(place, x);
}

absl::Status Feed::Labels(const Batch& batch, int micro_batch, const Tensor& labels) {
  std::byte* const place = PlaceOf(labels_, micro_batch, labels);
  const int64_t begin = micro_batch * options_.micro_batch_rows;
  const int64_t valid_rows = batch.ValidRows(micro_batch, options_.micro_batch_rows);
  auto* const values = reinterpret_cast<int32_t*>(place);
  for (int64_t i = 0; i < valid_rows; ++i) {
    values[i] = batch.data->label(batch.rows[static_cast<size_t>(begin + i)]);
  }
  return Deliver(place, labels);
}

}  // namespace stagecoach::engine
