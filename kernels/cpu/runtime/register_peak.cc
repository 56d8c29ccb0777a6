#include "kernels/cpu/runtime/register_peak.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "kernels/cpu/runtime/library_isa.h"

namespace stagecoach::kernels {
namespace {

// Enough independent chains to hide the latency of a multiply-add on two pipelines (6 cycles, of
// bfloat16), and few enough to stay in registers.
constexpr int kChains = 12;
constexpr int64_t kRounds = 16'000'000;
constexpr size_t kMostRuns = 40;
constexpr int kAgreeing = 4;  // within a hundredth

// Twelve chains in as many registers. The instructions are spelled out, since compilers may
// translate C++ into others: GCC 12 made scalars of these vectors, which most processors multiply
// at the same rate, and those that halve their longest vectors at twice that.
#define STAGECOACH_CHAIN(instruction, register, n) \
  instruction " %%" register "13, %%" register "12, %%" register n "\n\t"
#define STAGECOACH_SPIN(instruction, register) \
  const float factor = 0.999F, addend = 1e-3F; \
  int64_t rounds = kRounds;                    \
  asm volatile("vzeroall\n\t"                                                              \
               "vbroadcastss %[factor], %%" register "12\n\t"                              \
               "vbroadcastss %[addend], %%" register "13\n"                                \
               "1:\n\t"                                                                    \
               STAGECOACH_CHAIN(instruction, register, "0")                                \
               STAGECOACH_CHAIN(instruction, register, "1")                                \
               STAGECOACH_CHAIN(instruction, register, "2")                                \
               STAGECOACH_CHAIN(instruction, register, "3")                                \
               STAGECOACH_CHAIN(instruction, register, "4")                                \
               STAGECOACH_CHAIN(instruction, register, "5")                                \
               STAGECOACH_CHAIN(instruction, register, "6")                                \
               STAGECOACH_CHAIN(instruction, register, "7")                                \
               STAGECOACH_CHAIN(instruction, register, "8")                                \
               STAGECOACH_CHAIN(instruction, register, "9")                                \
               STAGECOACH_CHAIN(instruction, register, "10")                               \
               STAGECOACH_CHAIN(instruction, register, "11")                               \
               "dec %[rounds]\n\t"                                                         \
               "jnz 1b\n\t"                                                                \
               "vzeroupper"                                                                \
               : [rounds] "+r"(rounds)                                                     \
               : [factor] "m"(factor), [addend] "m"(addend)                                \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",     \
                 "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

void SpinBfloat16() { STAGECOACH_SPIN("vdpbf16ps", "zmm"); }
void Spin512() { STAGECOACH_SPIN("vfmadd213ps", "zmm"); }
void Spin256() { STAGECOACH_SPIN("vfmadd213ps", "ymm"); }

#undef STAGECOACH_SPIN
#undef STAGECOACH_CHAIN

// Used on processors without multiply-adds, whose vectors compilers do not turn into scalars.
void Spin128() {
  using Vector = float __attribute__((vector_size(16)));
  Vector chains[kChains] = {};
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (Vector& chain : chains) {
      chain = chain * 0.999F + 1e-3F;
      asm volatile("" : "+x"(chain));  // hides the value from the compiler
    }
  }
}

// A way to spin, and the number of multiply-adds of one of its instructions; null if none is known.
struct Spinner {
  void (*spin)();
  int multiply_adds;
};

Spinner FastestSpinner(Precision precision) {
  if (precision == Precision::kBfloat16) {
    if (LibraryUses(dnnl_cpu_isa_avx512_core_amx)) return {nullptr, 0};
    if (LibraryUses(dnnl_cpu_isa_avx512_core_bf16)) return {SpinBfloat16, 32};
    // Other processors compute with it in float32.
  }
  if (LibraryUses(dnnl_cpu_isa_avx512_core)) return {Spin512, 16};
  if (LibraryUses(dnnl_cpu_isa_avx2)) return {Spin256, 8};
  return {Spin128, 4};
}

}  // namespace

double RegisterPeakFlops(int threads, Precision precision) {
  const Spinner spinner = FastestSpinner(precision);
  if (spinner.spin == nullptr) return 0;
  // Runs until the best is no accident: other programs may occupy processors for seconds.
  std::vector<double> rates;
  double best = 0.0;
  const auto is_near = [&best](double rate) { return rate > 0.99 * best; };
  while (rates.size() < kMostRuns &&
         std::count_if(rates.begin(), rates.end(), is_near) < kAgreeing) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    try {
      for (int i = 1; i < threads; ++i) workers.emplace_back(spinner.spin);
    } catch (const std::system_error&) {  // the system allows no more: the existing threads count
      threads = static_cast<int>(workers.size()) + 1;
    }
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
