#include "engine/runtime/sample_numbers.h"

#include "base/status_macros.h"

namespace stagecoach::engine {

using kernels::CachedRow;
using schedule::MicroBatch;

absl::StatusOr<SampleNumberTable> SampleNumberTable::Create(kernels::Device& device,
                                                            int micro_batches,
                                                            int64_t micro_batch_rows,
                                                            int64_t cached_positions) {
  SampleNumberTable table(device, micro_batches, micro_batch_rows, cached_positions);
  const auto rows = cached_positions > 0 ? micro_batch_rows : int64_t{0};
  const int64_t bytes = micro_batches * (static_cast<int64_t>(sizeof(SampleNumbers)) +
                                         rows * static_cast<int64_t>(sizeof(CachedRow)));
  ASSIGN_OR_RETURN(table.table_, device.AllocateTable(bytes));
  ASSIGN_OR_RETURN(table.staging_, device.AllocateHost(bytes));
  return table;
}

absl::Status SampleNumberTable::Set(const Batch& batch) {
  SampleNumbers* const numbers = NumbersIn(staging_.data());
  for (int i = 0; i < micro_batches_; ++i) {
    numbers[i] = {
        .step = batch.step,
        .first_sample = batch.first_sample + (batch.first_micro_batch + i) * micro_batch_rows_};
    if (cached_positions_ > 0) SetRows(batch, i);
  }
  return device_->stream().CopyFromHost(table_.data(), staging_.data(), staging_.bytes());
}

void SampleNumberTable::SetRows(const Batch& batch, int micro_batch) {
  const absl::Span<const int64_t> rows = batch.RowsOf(micro_batch, micro_batch_rows_);
  CachedRow* const to = RowsIn(staging_.data()) + micro_batch * micro_batch_rows_;
  for (int64_t r = 0; r < micro_batch_rows_; ++r) {
    const bool is_padding = r >= std::ssize(rows);
    const int64_t row = is_padding ? cached_positions_ : rows[static_cast<size_t>(r)];
    to[r] = {.position = is_padding ? row : row % cached_positions_,
             .sequence = is_padding ? 0 : row / cached_positions_};
  }
}

}  // namespace stagecoach::engine
