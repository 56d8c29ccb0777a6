#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/data/dataset.h"
#include "engine/data/formats/idx.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/memory_folder.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  static const MemoryFolder folder(std::array{"train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                              "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"});
  folder.Fill(input);
  const absl::StatusOr<engine::TrainTest> data = engine::LoadIdxDirectory(folder.path());
  if (!data.ok()) return data.status();
  for (const auto& set : {data->train, data->test}) {
    std::vector<float> row(static_cast<size_t>(set->features()));
    for (int64_t i = 0; i < set->rows(); ++i) {
      set->CopyNumbers(0, i, absl::MakeSpan(row));
      STAGECOACH_CHECK(set->label(i) < set->classes(), set->label(i));
    }
  }
  const auto samples = engine::LoadIdxImages(folder.path(), data->encoding, data->test->classes());
  STAGECOACH_CHECK(samples.ok() && (*samples)->rows() == data->test->rows(), input);
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
