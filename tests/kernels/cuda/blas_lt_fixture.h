#ifndef STAGECOACH_TESTS_KERNELS_CUDA_BLAS_LT_FIXTURE_H_
#define STAGECOACH_TESTS_KERNELS_CUDA_BLAS_LT_FIXTURE_H_

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/cuda/products/blas_lt.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/tuning/tuner.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::kernels {

// Returns products of several kinds, each of which has several algorithms.
inline const std::vector<Product>& Products() {
  static const auto& products =
      *new std::vector<Product>{{.m = 64, .n = 32, .k = 48, .epilogue = Epilogue::kReluBias},
                                {.m = 32, .n = 64, .k = 48, .lda = 40, .ldb = 56, .ldd = 64},
                                {.transpose_a = true, .m = 48, .n = 32, .k = 64},
                                {.transpose_b = true, .m = 64, .n = 48, .k = 32},
                                {.m = 128, .n = 8, .k = 256, .epilogue = Epilogue::kGeluAuxBias}};
  return products;
}

// A stream, and what plans products for it, without a device around them.
struct Blas {
  std::unique_ptr<CudaStream> stream;
  std::unique_ptr<Tuner> tuner;
  std::unique_ptr<BlasLt> blas;

  static absl::StatusOr<Blas> Create(const std::string& tuning_file = "", int gpu = 0,
                                     Precision precision = Precision::kFloat32) {
    Blas result;
    ASSIGN_OR_RETURN(result.stream, CudaStream::Create(gpu));
    ASSIGN_OR_RETURN(result.tuner, Tuner::Create(gpu, tuning_file));
    ASSIGN_OR_RETURN(result.blas, BlasLt::Create(precision, *result.tuner));
    return result;
  }
  absl::StatusOr<Algorithm> Choose(const Product& product) const {
    ASSIGN_OR_RETURN(const MatmulPlan* const plan, blas->Plan(product));
    return plan->algorithm();
  }
};

// A machine, and a folder for tuning files that disappears with the test.
class BlasLtTest : public CudaBackendTest {
 protected:
  std::string tuning_file() const { return (folder_.path() / "tuning.json").string(); }

  nlohmann::json ReadTuning() const { return nlohmann::json::parse(std::ifstream(tuning_file())); }
  void WriteTuning(const nlohmann::json& json) const { std::ofstream(tuning_file()) << json; }

  static Algorithm ChooseAnew(const std::string& file, const Product& product) {
    const absl::StatusOr<Blas> blas = Blas::Create(file);
    STAGECOACH_CHECK_OK(blas);
    const absl::StatusOr<Algorithm> algorithm = blas->Choose(product);
    STAGECOACH_CHECK_OK(algorithm);
    return *algorithm;
  }

 private:
  const testing::TestFolder folder_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_TESTS_KERNELS_CUDA_BLAS_LT_FIXTURE_H_
