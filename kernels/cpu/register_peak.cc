#include "kernels/cpu/register_peak.h"

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace stagecoach::kernels {
namespace {

// Enough independent chains to hide the latency of a multiply-add on two pipelines, and few enough
// to stay in registers.
constexpr int kChains = 10;
constexpr int64_t kRounds = 20'000'000;

// Ten chains in ten variables: an array would be kept in memory. The function that it is inlined
// into says which instructions there are.
template <int kBytes>
__attribute__((always_inline)) inline void Spin() {
  using Vector = float __attribute__((vector_size(kBytes)));
  Vector a0{}, a1{}, a2{}, a3{}, a4{}, a5{}, a6{}, a7{}, a8{}, a9{};
  const Vector b = Vector{} + 0.999F;
  const Vector c = Vector{} + 1e-3F;
  for (int64_t i = 0; i < kRounds; ++i) {
    a0 = a0 * b + c;
    a1 = a1 * b + c;
    a2 = a2 * b + c;
    a3 = a3 * b + c;
    a4 = a4 * b + c;
    a5 = a5 * b + c;
    a6 = a6 * b + c;
    a7 = a7 * b + c;
    a8 = a8 * b + c;
    a9 = a9 * b + c;
    // Keeps the compiler from seeing through the loop.
    asm volatile("" : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4));
    asm volatile("" : "+v"(a5), "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9));
  }
}

__attribute__((target("avx512f"))) void Spin512() { Spin<64>(); }
__attribute__((target("avx2,fma"))) void Spin256() { Spin<32>(); }
void Spin128() { Spin<16>(); }

// A way to spin, and how many numbers it has in a vector.
struct Spinner {
  void (*spin)();
  int lanes;
};

Spinner WidestSpinner() {
  const int isa = dnnl_get_effective_cpu_isa();
  if (isa >= dnnl_cpu_isa_avx512_core && __builtin_cpu_supports("avx512f") != 0) {
    return {Spin512, 16};
  }
  if (isa >= dnnl_cpu_isa_avx2 && __builtin_cpu_supports("fma") != 0) return {Spin256, 8};
  return {Spin128, 4};
}

}  // namespace

double RegisterPeakFlops(int threads) {
  const Spinner spinner = WidestSpinner();
  double best = 0.0;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    for (int i = 1; i < threads; ++i) workers.emplace_back(spinner.spin);
    spinner.spin();
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * spinner.lanes * kChains * static_cast<double>(kRounds) * threads /
                              seconds.count());
  }
  return best;
}

}  // namespace stagecoach::kernels
