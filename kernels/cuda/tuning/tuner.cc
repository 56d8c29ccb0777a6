#include "kernels/cuda/tuning/tuner.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<Tuner>> Tuner::Create(int gpu, const std::string& tuning_file,
                                                     bool is_for_planning) {
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties"));
  std::shared_ptr<TuningTable> table;
  if (!tuning_file.empty()) {
    ASSIGN_OR_RETURN(table, TuningTable::Open(tuning_file));
  }
  std::string model =
      absl::StrCat(properties.name, ", ", properties.multiProcessorCount, " multiprocessors");
  return std::unique_ptr<Tuner>(new Tuner(gpu, std::move(model), properties.major, properties.minor,
                                          static_cast<int64_t>(properties.sharedMemPerBlockOptin),
                                          std::move(table), is_for_planning));
}

void Tuner::Tell(const std::string& what, std::string way) {
  base::MutexLock lock(mutex_);
  told_.insert_or_assign(what, std::move(way));
}

std::vector<std::string> Tuner::choices() {
  base::MutexLock lock(mutex_);
  std::vector<std::string> texts;
  for (const auto& [what, way] : told_) texts.push_back(absl::StrCat(what, ": ", way));
  return texts;
}

}  // namespace stagecoach::kernels
