#ifndef STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_WARPGROUP_PRODUCTS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_WARPGROUP_PRODUCTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "tests/testing/cuda/emulator/block.h"

namespace stagecoach::testing::cuda {

// The shared memory of a block as products see it.
struct ProductMemory {
  const unsigned char* data;
  size_t bytes;
  uint32_t address;  // of `data`
  // Per 16 bytes, whether a copy has arrived that was not shown to products.
  const std::vector<uint8_t>& is_hidden;
};

// One warp's share of the asynchronous products of its warpgroup: 16 of 64 rows. A GPU may read and
// write at any time between a product's start and the wait for it; this class detects code that
// depends on the actual time, as AsyncCopies does. The functions return null, or what is wrong.
class WarpProducts {
 public:
  static constexpr unsigned kLanes = 32, kRows = 16, kTerms = 16;

  using Operands = std::array<const ProductOperands*, kLanes>;

  void Begin() { has_begun_ = true; }
  // Reads a and b. Poisons c, unless it belongs to products that are already under way.
  const char* Start(const Operands& lanes, unsigned warp_of_group, const ProductMemory& memory);
  void Commit() {
    ++committed_;
    has_begun_ = false;
  }
  // Computes all products but those of the last `groups` groups, whose operands must be as they
  // were. Stores those c to which no product is added any more.
  const char* Wait(size_t groups, const ProductMemory& memory);
  bool under_way() const { return !products_.empty(); }
  // Returns a number that differs if different products have been started. Those of the four warps
  // of a group must not.
  uint64_t trace() const { return trace_; }

 private:
  using Factor = std::vector<uint16_t>;  // in the order of rows
  struct Product {
    size_t group;
    ProductOperands operands;                       // of the first lane
    std::array<const uint32_t*, kLanes> a_of_lane;  // null: in shared memory
    unsigned warp_of_group;
    Factor a, b;  // as they were at the start
  };
  struct Sums {
    std::array<float*, kLanes> registers;
    unsigned columns;
    std::vector<float> values;  // rows of c
    size_t under_way;           // products
  };

  // Reads the factors of the product as they are now.
  static const char* Read(const Product& product, const ProductMemory& memory, Factor& a,
                          Factor& b);
  Sums* Find(const float* c);
  const char* Finish(const Product& product, const ProductMemory& memory);

  std::deque<Product> products_;
  std::vector<Sums> sums_;
  size_t committed_ = 0;  // groups
  bool has_begun_ = false;
  uint64_t trace_ = 0;
};

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_WARPGROUP_PRODUCTS_H_
