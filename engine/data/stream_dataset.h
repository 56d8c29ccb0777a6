#ifndef STAGECOACH_ENGINE_DATA_STREAM_DATASET_H_
#define STAGECOACH_ENGINE_DATA_STREAM_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/data/dataset.h"

namespace stagecoach::engine {

// Makes samples, one after the other, without an end: a simulation, a shuffled mixture of files, a
// queue that keeps what it has had. A run is deterministic, resumes with the same bits and has them
// under every partition if the generator keeps one promise: sample i is the same whenever it is
// made, in every process of the run, whatever has been made before. What is random in it is thus a
// function of i and a seed, not of a generator's state. Not called by several threads at once.
class SampleGenerator {
 public:
  virtual ~SampleGenerator() = default;
  // Returns what each sample is; always the same.
  virtual SampleSpec spec() const = 0;
  // Makes sample `position` (>= 0) the next one. Called before the first Next, and whenever other
  // samples are wanted than the next: where a run resumes, or where a process has no part in some.
  virtual absl::Status Seek(int64_t position) = 0;
  // Writes the next sample: each input of spec() and the target, which are 0 before. Labels may be
  // kernels::kNoLabel, but not all of a sample. An error ends the run.
  virtual absl::Status Next(absl::Span<const absl::Span<std::byte>> inputs,
                            absl::Span<std::byte> target) = 0;
};

// Returns the samples of a generator as data to train on for a number of steps (FitOptions::steps):
// in their order, each once. The last ones are kept in memory: as many as are asked for again.
std::shared_ptr<const Dataset> StreamOf(std::unique_ptr<SampleGenerator> generator);

// Does the same for samples that a function writes (SampleGenerator::Next), each from its number
// alone.
using MakeSample =
    std::function<absl::Status(int64_t position, absl::Span<const absl::Span<std::byte>> inputs,
                               absl::Span<std::byte> target)>;
std::shared_ptr<const Dataset> StreamOf(SampleSpec spec, MakeSample make);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_STREAM_DATASET_H_
