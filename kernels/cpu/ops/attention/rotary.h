#ifndef STAGECOACH_KERNELS_CPU_OPS_ATTENTION_ROTARY_H_
#define STAGECOACH_KERNELS_CPU_OPS_ATTENTION_ROTARY_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "kernels/math.h"
#include "kernels/rotary_scaling.h"

namespace stagecoach::kernels {

// Rotates queries and keys by their position: the pair (i, i + D/2) of position t by the angle t
// base^(-2i/R), which may be scaled, or not at all from i = R/2 on. Its table has T x D numbers.
class Rotary {
 public:
  // `rotary_size`: R; 0: D.
  Rotary(int64_t positions, int64_t head_size, float base, const RotaryScaling& scaling,
         int64_t rotary_size)
      : half_(head_size / 2), table_(static_cast<size_t>(positions * head_size)) {
    const int64_t turned = rotary_size == 0 ? head_size : rotary_size;
    for (int64_t i = 0; i < half_; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(turned);
      const double frequency =
          2 * i < turned
              ? ScaledFrequency(std::pow(static_cast<double>(base), exponent), scaling, i)
              : 0.0;
      const double scale = 2 * i < turned ? scaling.scale : 1.0;
      for (int64_t t = 0; t < positions; ++t) {
        float* const row = &table_[static_cast<size_t>(t * head_size)];
        const double angle = static_cast<double>(t) * frequency;
        row[i] = static_cast<float>(scale * std::cos(angle));
        row[half_ + i] = static_cast<float>(scale * std::sin(angle));
      }
    }
  }

  // Computes to = scale * from, rotated. `to` may be `from`.
  template <typename From, typename To>
  void Turn(int64_t position, float scale, const From* from, To* to) const {
    const float* const cosine = &table_[static_cast<size_t>(position * 2 * half_)];
    const float* const sine = cosine + half_;
    for (int64_t i = 0; i < half_; ++i) {
      const float a = scale * from[i];
      const float b = scale * from[half_ + i];
      to[i] = a * cosine[i] - b * sine[i];
      to[half_ + i] = b * cosine[i] + a * sine[i];
    }
  }

  // Does the same with the opposite rotation, for gradients.
  template <typename From, typename To>
  void TurnBack(int64_t position, float scale, const From* from, To* to) const {
    const float* const cosine = &table_[static_cast<size_t>(position * 2 * half_)];
    const float* const sine = cosine + half_;
    for (int64_t i = 0; i < half_; ++i) {
      const float a = scale * from[i];
      const float b = scale * from[half_ + i];
      to[i] = a * cosine[i] + b * sine[i];
      to[half_ + i] = b * cosine[i] - a * sine[i];
    }
  }

 private:
  int64_t half_;
  std::vector<float> table_;  // for each position D/2 cosines, then as many sines
};

// Returns the one of these arguments, which all callers share, as the layers of a model and the
// passes of each do. Thread-safe.
inline std::shared_ptr<const Rotary> SharedRotary(int64_t positions, int64_t head_size,
                                                  float rotary_base, const RotaryScaling& scaling,
                                                  int64_t rotary_size) {
  using Key = std::tuple<int64_t, int64_t, float, double, std::vector<double>, int64_t>;
  static base::Mutex mutex;
  static auto& all = *new std::map<Key, std::weak_ptr<const Rotary>>();
  const base::MutexLock lock(mutex);
  std::weak_ptr<const Rotary>& place = all[Key(
      positions, head_size, rotary_base, scaling.scale,
      std::vector<double>(scaling.divisors, scaling.divisors + scaling.pairs), rotary_size)];
  std::shared_ptr<const Rotary> rotary = place.lock();
  if (rotary == nullptr) {
    rotary =
        std::make_shared<const Rotary>(positions, head_size, rotary_base, scaling, rotary_size);
    place = rotary;
  }
  return rotary;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_ATTENTION_ROTARY_H_
