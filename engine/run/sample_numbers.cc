#include "engine/run/sample_numbers.h"

#include "base/status_macros.h"

namespace stagecoach::engine {

absl::StatusOr<SampleNumberTable> SampleNumberTable::Create(kernels::Device& device,
                                                            int micro_batches,
                                                            int64_t micro_batch_rows) {
  SampleNumberTable table(device, micro_batch_rows);
  const int64_t bytes = micro_batches * static_cast<int64_t>(sizeof(SampleNumbers));
  ASSIGN_OR_RETURN(table.table_, device.AllocateTable(bytes));
  ASSIGN_OR_RETURN(table.staging_, device.AllocateHost(bytes));
  return table;
}

absl::Status SampleNumberTable::Set(const Batch& batch) {
  auto* const numbers = reinterpret_cast<SampleNumbers*>(staging_.data());
  const int64_t micro_batches = staging_.bytes() / static_cast<int64_t>(sizeof(SampleNumbers));
  for (int64_t i = 0; i < micro_batches; ++i) {
    numbers[i] = {
        .step = batch.step,
        .first_sample = batch.first_sample + (batch.first_micro_batch + i) * micro_batch_rows_};
  }
  return device_->stream().CopyFromHost(table_.data(), staging_.data(), staging_.bytes());
}

}  // namespace stagecoach::engine
