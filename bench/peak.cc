#include "bench/peak.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace stagecoach::bench {
namespace {

// As wide as the widest vector register that the compiler may use.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
using Vector = float __attribute__((vector_size(kVectorBytes)));
constexpr int kLanes = kVectorBytes / 4;
// Enough independent chains to hide the latency of a multiply-add on two pipelines, and few enough
// to stay in registers.
constexpr int kChains = 10;
constexpr int64_t kRounds = 20'000'000;

// Ten chains in ten variables: an array would be kept in memory.
void Spin() {
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

}  // namespace

double PeakFlopsPerSecond(int threads) {
  double best = 0.0;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    for (int i = 1; i < threads; ++i) workers.emplace_back(Spin);
    Spin();
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(
        best, 2.0 * kLanes * kChains * static_cast<double>(kRounds) * threads / seconds.count());
  }
  return best;
}

}  // namespace stagecoach::bench
