#include "tests/testing/cuda/emulator/warpgroup_products.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

// Descriptors, and how matrices lie in shared memory and in registers, are from the PTX ISA,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions": what is read is found
// from the bits of the descriptor alone.
namespace stagecoach::testing::cuda {
namespace {

constexpr uint32_t kPoison = 0xFFFFFFFFU;  // NaN

struct Descriptor {
  explicit Descriptor(uint64_t bits)
      : address(static_cast<uint32_t>(bits & 0x3FFF) << 4),
        leading(static_cast<uint32_t>(bits >> 16 & 0x3FFF) << 4),
        stride(static_cast<uint32_t>(bits >> 32 & 0x3FFF) << 4),
        base_offset(static_cast<uint32_t>(bits >> 49 & 7)),
        swizzle(static_cast<uint32_t>(bits >> 62)) {}
  uint32_t address, leading, stride, base_offset, swizzle;

  // Returns the address of an element, with the swizzle of 128 bytes: of the row `outer` of the
  // product, and the term `inner` of its sums; if `terms_are_rows`, terms are rows in memory.
  uint32_t At(uint32_t outer, uint32_t inner, bool terms_are_rows) const {
    const uint32_t offset = terms_are_rows ? outer % 64 * 2 + outer / 64 * leading +
                                                 inner % 8 * 128 + inner / 8 * stride
                                           : outer % 8 * 128 + outer / 8 * stride + inner * 2;
    const uint32_t logical = address + offset;
    return logical ^ (logical >> 7 & 7) << 4;
  }
};

const char* ReadMatrix(uint64_t bits, uint32_t first, uint32_t count, bool terms_are_rows,
                       const ProductMemory& memory, std::vector<uint16_t>& to) {
  const Descriptor descriptor(bits);
  if (descriptor.swizzle != 1 || descriptor.base_offset != 0) {
    return "whose descriptor has another swizzle than that of 128 bytes";
  }
  to.clear();
  for (uint32_t outer = first; outer < first + count; ++outer) {
    for (uint32_t inner = 0; inner < WarpProducts::kTerms; ++inner) {
      const size_t offset = descriptor.At(outer, inner, terms_are_rows) - memory.address;
      if (offset + 2 > memory.bytes) return "that reads outside shared memory";
      if (memory.is_hidden[offset / 16] != 0) return "that reads what was not shown to products";
      uint16_t element;
      std::memcpy(&element, memory.data + offset, sizeof(element));
      to.push_back(element);
    }
  }
  return nullptr;
}

float FromBits(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Returns the place in c, by rows of a warp, of a lane's register.
std::pair<unsigned, unsigned> PlaceOf(unsigned lane, unsigned i) {
  return {lane / 4 + i % 4 / 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2};
}

}  // namespace

const char* WarpProducts::Read(const Product& product, const ProductMemory& memory, Factor& a,
                               Factor& b) {
  if (product.a_of_lane[0] == nullptr) {
    if (const char* const fault = ReadMatrix(product.operands.a, product.warp_of_group * kRows,
                                             kRows, /*terms_are_rows=*/false, memory, a);
        fault != nullptr) {
      return fault;
    }
  } else {
    a.assign(kRows * kTerms, 0);
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      for (unsigned i = 0; i < 8; ++i) {
        const unsigned word = i / 2, row = lane / 4 + word % 2 * 8;
        const unsigned term = lane % 4 * 2 + word / 2 * 8 + i % 2;
        a[row * kTerms + term] =
            static_cast<uint16_t>(product.a_of_lane[lane][word] >> (16 * (i % 2)));
      }
    }
  }
  return ReadMatrix(product.operands.b, 0, product.operands.columns,
                    product.operands.sums_over_rows, memory, b);
}

WarpProducts::Sums* WarpProducts::Find(const float* c) {
  const auto found = std::find_if(sums_.begin(), sums_.end(),
                                  [&](const Sums& sums) { return sums.registers[0] == c; });
  return found == sums_.end() ? nullptr : &*found;
}

const char* WarpProducts::Start(const Operands& lanes, unsigned warp_of_group,
                                const ProductMemory& memory) {
  if (!has_begun_) return "that is the first of its group, without BeginProducts";
  const ProductOperands& first = *lanes[0];
  Product product{.group = committed_,
                  .operands = first,
                  .a_of_lane = {},
                  .warp_of_group = warp_of_group,
                  .a = {},
                  .b = {}};
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const ProductOperands& own = *lanes[lane];
    if (own.a != first.a || own.b != first.b || own.adds != first.adds) {
      return "of which the lanes have different descriptors";
    }
    product.a_of_lane[lane] = own.a_words;
  }
  if (const char* const fault = Read(product, memory, product.a, product.b); fault != nullptr) {
    return fault;
  }
  Sums* sums = Find(first.c);
  if (sums == nullptr) {
    sums_.push_back({.registers = {},
                     .columns = first.columns,
                     .values = std::vector<float>(kRows * first.columns),
                     .under_way = 0});
    sums = &sums_.back();
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      sums->registers[lane] = lanes[lane]->c;
      for (unsigned i = 0; i < first.columns / 2; ++i) {
        const auto [row, column] = PlaceOf(lane, i);
        sums->values[row * first.columns + column] = lanes[lane]->c[i];
        std::memcpy(&lanes[lane]->c[i], &kPoison, sizeof(kPoison));
      }
    }
  }
  ++sums->under_way;
  for (const uint64_t word : {first.a, first.b,
                              uint64_t{first.columns} << 2 | uint64_t{first.sums_over_rows} << 1 |
                                  uint64_t{first.adds}}) {
    trace_ = (std::rotl(trace_, 5) ^ word) * 0x9E3779B97F4A7C15U;
  }
  products_.push_back(std::move(product));
  return nullptr;
}

const char* WarpProducts::Finish(const Product& product, const ProductMemory& memory) {
  Factor a, b;
  if (const char* const fault = Read(product, memory, a, b); fault != nullptr) return fault;
  if (a != product.a || b != product.b) return "whose factors have changed since its start";
  Sums& sums = *Find(product.operands.c);
  const unsigned columns = sums.columns;
  std::vector<float> rows(kRows * kTerms), transposed(columns * kTerms);
  std::transform(a.begin(), a.end(), rows.begin(), FromBits);
  std::transform(b.begin(), b.end(), transposed.begin(), FromBits);
  for (unsigned row = 0; row < kRows; ++row) {
    for (unsigned column = 0; column < columns; ++column) {
      float& value = sums.values[row * columns + column];
      float sum = product.operands.adds ? value : 0.0F;
      for (unsigned term = 0; term < kTerms; ++term) {
        sum += rows[row * kTerms + term] * transposed[column * kTerms + term];
      }
      value = sum;
    }
  }
  if (--sums.under_way > 0) return nullptr;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    for (unsigned i = 0; i < columns / 2; ++i) {
      float& own = sums.registers[lane][i];
      if (std::memcmp(&own, &kPoison, sizeof(kPoison)) != 0) {
        return "whose result was written to by others";
      }
      const auto [row, column] = PlaceOf(lane, i);
      own = sums.values[row * columns + column];
    }
  }
  sums_.erase(sums_.begin() + (&sums - sums_.data()));
  return nullptr;
}

const char* WarpProducts::Wait(size_t groups, const ProductMemory& memory) {
  has_begun_ = false;
  for (; !products_.empty() && products_.front().group + groups < committed_;
       products_.pop_front()) {
    if (const char* const fault = Finish(products_.front(), memory); fault != nullptr) {
      return fault;
    }
  }
  return nullptr;
}

}  // namespace stagecoach::testing::cuda
