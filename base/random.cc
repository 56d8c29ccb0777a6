#include "base/random.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/philox.h"

namespace stagecoach::base {
namespace {

constexpr double kTwoToMinus32 = 1.0 / 4294967296.0;

std::array<uint32_t, 4> ToArray(const PhiloxWords& words) {
  return {words.w0, words.w1, words.w2, words.w3};
}

float UniformFromWord(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Returns two independent standard normals from two words (Box and Muller, 1958).
std::array<float, 2> NormalsFromWords(uint32_t a, uint32_t b) {
  const double u = (static_cast<double>(a) + 1.0) * kTwoToMinus32;  // in (0, 1], so log is finite
  const double angle = 2.0 * std::numbers::pi * (static_cast<double>(b) * kTwoToMinus32);
  const double radius = std::sqrt(-2.0 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)),
          static_cast<float>(radius * std::sin(angle))};
}

std::array<float, 4> NormalsFromWords(const std::array<uint32_t, 4>& words) {
  const auto [z0, z1] = NormalsFromWords(words[0], words[1]);
  const auto [z2, z3] = NormalsFromWords(words[2], words[3]);
  return {z0, z1, z2, z3};
}

std::array<float, 4> UniformsFromWords(const std::array<uint32_t, 4>& words) {
  return {UniformFromWord(words[0]), UniformFromWord(words[1]), UniformFromWord(words[2]),
          UniformFromWord(words[3])};
}

// Sets values[i] = fma(scale, sample(first_index + i), shift), where block_of(k) returns samples 4k
// to 4k + 3. The multiply-add is explicit because a compiler may or may not fuse a * b + c.
template <typename BlockFunction>
void FillScaled(float shift, float scale, uint64_t first_index, absl::Span<float> values,
                BlockFunction block_of) {
  for (size_t done = 0; done < values.size();) {
    const uint64_t index = first_index + done;
    const std::array<float, 4> samples = block_of(index / 4);
    for (size_t lane = index % 4; lane < 4 && done < values.size(); ++lane, ++done) {
      values[done] = std::fma(scale, samples[lane], shift);
    }
  }
}

}  // namespace

std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  return ToArray(PhiloxBlock({counter[0], counter[1], counter[2], counter[3]}, {key[0], key[1]}));
}

std::array<uint32_t, 4> RandomStream::Words(uint64_t block) const {
  return ToArray(PhiloxBlock(PhiloxCounterOf(stream_, block), PhiloxKeyOf(seed_)));
}

uint32_t RandomStream::Uint32(uint64_t index) const { return Words(index / 4)[index % 4]; }

float RandomStream::Uniform(uint64_t index) const { return UniformFromWord(Uint32(index)); }

float RandomStream::Normal(uint64_t index) const {
  return NormalsFromWords(Words(index / 4))[index % 4];
}

uint64_t RandomStream::Below(uint64_t index, uint64_t n) const {
  STAGECOACH_CHECK(n > 0, "there is no integer in [0, 0)");
  const std::array<uint32_t, 4> words = Words(index / 2);
  const size_t lane = index % 2 * 2;
  const uint64_t bits = uint64_t{words[lane + 1]} << 32 | words[lane];
  return absl::Uint128High64(absl::uint128(bits) * n);
}

void RandomStream::FillUniform(float lo, float hi, absl::Span<float> values,
                               uint64_t first_index) const {
  FillScaled(lo, hi - lo, first_index, values,
             [this](uint64_t block) { return UniformsFromWords(Words(block)); });
}

void RandomStream::FillNormal(float mean, float stddev, absl::Span<float> values,
                              uint64_t first_index) const {
  FillScaled(mean, stddev, first_index, values,
             [this](uint64_t block) { return NormalsFromWords(Words(block)); });
}

std::vector<int64_t> Permutation(uint64_t seed, uint64_t stream, int64_t n) {
  STAGECOACH_CHECK(n >= 0, absl::StrCat("a permutation of ", n, " elements"));
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  const RandomStream random(seed, stream);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.Below(i, i)]);
  }
  return order;
}

}  // namespace stagecoach::base
