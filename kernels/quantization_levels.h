#ifndef STAGECOACH_KERNELS_QUANTIZATION_LEVELS_H_
#define STAGECOACH_KERNELS_QUANTIZATION_LEVELS_H_

#include <cstddef>

// The levels of NF4 matrices (kernels/quantized_matrix.h) in a form that the device compiler reads
// too.
namespace stagecoach::kernels {

template <size_t kCount>
struct LevelTable {
  float of[kCount];
};

// The quantiles of the normal distribution that QLoRA published.
inline constexpr LevelTable<16> kNf4LevelTable = {
    {-1.0F, -0.6961928009986877F, -0.5250730514526367F, -0.39491748809814453F,
     -0.28444138169288635F, -0.18477343022823334F, -0.09105003625154495F, 0.0F,
     0.07958029955625534F, 0.16093020141124725F, 0.24611230194568634F, 0.33791524171829224F,
     0.44070982933044434F, 0.5626170039176941F, 0.7229568362236023F, 1.0F}};

// Returns the levels of bitsandbytes' create_dynamic_map: of each decade below 1, from 10^-7 on,
// twice as many as of the one before, in the middles of equal parts; the same with a minus; 0 and
// 1. They have the bits that PyTorch computes with AVX2 or AVX-512, where `linspace` rounds once.
constexpr LevelTable<256> MakeNf4ScaleLevelTable() {
  constexpr float kDecades[] = {1e-6F, 1e-5F, 1e-4F, 1e-3F, 1e-2F, 1e-1F, 1.0F};
  constexpr double kFirst = 0.1F, kLast = 1.0;
  LevelTable<256> table = {};
  size_t above_zero = 128;
  int parts = 1;
  for (const float decade : kDecades) {
    const double step = static_cast<float>((1.0F - 0.1F) / static_cast<float>(parts));
    const auto boundary = [&](int i) {
      return static_cast<float>(i < (parts + 1) / 2 ? kFirst + step * i
                                                    : kLast - step * (parts - i));
    };
    for (int i = 0; i < parts; ++i) {
      const float level = decade * ((boundary(i) + boundary(i + 1)) / 2.0F);
      table.of[254 - above_zero] = -level;
      table.of[above_zero++] = level;
    }
    parts *= 2;
  }
  table.of[255] = 1.0F;
  return table;
}
inline constexpr LevelTable<256> kNf4ScaleLevelTable = MakeNf4ScaleLevelTable();

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_QUANTIZATION_LEVELS_H_
