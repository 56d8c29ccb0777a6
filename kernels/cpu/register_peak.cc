#include "kernels/cpu/register_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/cpu/library_isa.h"

namespace stagecoach::kernels {
namespace {

// Enough independent chains to hide the latency of a multiply-add on two pipelines (6 cycles, of
// bfloat16), and few enough to stay in registers.
constexpr int kChains = 12;
constexpr int64_t kRounds = 16'000'000;
constexpr size_t kMostRuns = 40;
constexpr int kAgreeing = 4;  // within a hundredth

// Twelve chains in as many variables: an array would be kept in memory. The function that it is
// inlined into says which instructions there are.
template <int kBytes, bool kBfloat16 = false>
__attribute__((always_inline)) inline void Spin() {
  using Vector = float __attribute__((vector_size(kBytes)));
  Vector a0{}, a1{}, a2{}, a3{}, a4{}, a5{}, a6{}, a7{}, a8{}, a9{}, a10{}, a11{};
  const Vector b = Vector{} + 0.999F;
  const Vector c = Vector{} + 1e-3F;
#define STAGECOACH_SPIN(a)                                              \
  if constexpr (kBfloat16) {                                            \
    asm volatile("vdpbf16ps %1, %2, %0" : "+v"(a) : "v"(b), "v"(c));    \
  } else {                                                              \
    a = a * b + c;                                                      \
    asm volatile("" : "+v"(a)); /* the compiler must not see through */ \
  }
  for (int64_t i = 0; i < kRounds; ++i) {
    STAGECOACH_SPIN(a0)
    STAGECOACH_SPIN(a1)
    STAGECOACH_SPIN(a2)
    STAGECOACH_SPIN(a3)
    STAGECOACH_SPIN(a4)
    STAGECOACH_SPIN(a5)
    STAGECOACH_SPIN(a6)
    STAGECOACH_SPIN(a7)
    STAGECOACH_SPIN(a8)
    STAGECOACH_SPIN(a9)
    STAGECOACH_SPIN(a10)
    STAGECOACH_SPIN(a11)
  }
#undef STAGECOACH_SPIN
}

__attribute__((target("avx512f"))) void SpinBfloat16() { Spin<64, true>(); }
__attribute__((target("avx512f"))) void Spin512() { Spin<64>(); }
__attribute__((target("avx2,fma"))) void Spin256() { Spin<32>(); }
void Spin128() { Spin<16>(); }

// A way to spin, and the multiply-adds of one of its instructions; null: none is known.
struct Spinner {
  void (*spin)();
  int multiply_adds;
};

Spinner FastestSpinner(Precision precision) {
  if (precision == Precision::kBfloat16) {
    if (LibraryUses(dnnl_cpu_isa_avx512_core_amx)) return {nullptr, 0};
    if (LibraryUses(dnnl_cpu_isa_avx512_core_bf16)) return {SpinBfloat16, 32};
    // Others compute with it in float32.
  }
  if (LibraryUses(dnnl_cpu_isa_avx512_core)) return {Spin512, 16};
  if (LibraryUses(dnnl_cpu_isa_avx2)) return {Spin256, 8};
  return {Spin128, 4};
}

}  // namespace

double RegisterPeakFlops(int threads, Precision precision) {
  const Spinner spinner = FastestSpinner(precision);
  if (spinner.spin == nullptr) return 0;
  // Until the best is no accident: other programs may take processors for seconds.
  std::vector<double> rates;
  double best = 0.0;
  const auto is_near = [&best](double rate) { return rate > 0.99 * best; };
  while (rates.size() < kMostRuns &&
         std::count_if(rates.begin(), rates.end(), is_near) < kAgreeing) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    for (int i = 1; i < threads; ++i) workers.emplace_back(spinner.spin);
    spinner.spin();
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    rates.push_back(2.0 * spinner.multiply_adds * kChains * static_cast<double>(kRounds) * threads /
                    seconds.count());
    best = std::max(best, rates.back());
  }
  return best;
}

}  // namespace stagecoach::kernels
