#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_VECTOR_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_VECTOR_CUH_

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/device/element_type.h"

// Memory accesses of several neighboring elements at once. A kernel is compiled for vectors of
// kVectorWidth elements (16 bytes), and for vectors of one, for addresses and extents that are not
// multiples of it. In registers all values are float32.
namespace stagecoach::kernels {

// The number of elements that one access of 16 bytes moves.
template <typename T>
inline constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(T));

// Returns whether all addresses are multiples of 16. Null is.
template <typename... Pointers>
bool AlignedForVectors(const Pointers*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }

// Returns `value` rounded to T, to nearest, ties to even.
template <typename T>
__device__ inline T FromFloat(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return __float2bfloat16_rn(value);
  }
}

namespace internal {

// The unit that the hardware moves at once: whole words, whatever they contain.
template <int kBytes>
struct Word;
template <>
struct Word<16> {
  using Type = uint4;
};
template <>
struct Word<8> {
  using Type = uint2;
};
template <typename T, int N>
using WordOf = typename Word<N* static_cast<int>(sizeof(T))>::Type;

// Takes the word by value: through a reference into memory, each byte would be loaded by itself.
template <typename T, int N>
__device__ void Unpack(WordOf<T, N> word, float (&to)[N]) {
  if constexpr (std::is_same_v<T, float>) {
    memcpy(to, &word, sizeof(word));
  } else {
    // bfloat16 is the upper half of float32. Each of a pair takes one instruction.
    uint32_t pairs[N / 2];
    memcpy(pairs, &word, sizeof(word));
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      to[2 * i] = __uint_as_float(pairs[i] << 16);
      to[2 * i + 1] = __uint_as_float(pairs[i] & 0xFFFF0000U);
    }
  }
}

template <typename T, int N>
__device__ WordOf<T, N> Pack(const float (&from)[N]) {
  WordOf<T, N> word;
  if constexpr (std::is_same_v<T, float>) {
    memcpy(&word, from, sizeof(word));
  } else {
    // Conversion in pairs takes one instruction.
    __nv_bfloat162 pairs[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) pairs[i] = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
    memcpy(&word, pairs, sizeof(word));
  }
  return word;
}

template <typename T, int N>
struct PackedElements {
  using Type = WordOf<T, N>;
};
template <typename T>
struct PackedElements<T, 1> {
  using Type = T;
};

}  // namespace internal

// N elements as they lie in memory: they take fewer registers than in float32, and nothing waits
// for them before Unpack.
template <typename T, int N>
using Packed = typename internal::PackedElements<T, N>::Type;

template <typename T, int N>
__device__ Packed<T, N> LoadPacked(const T* from) {
  return *reinterpret_cast<const Packed<T, N>*>(from);
}

template <typename T, int N>
__device__ void Unpack(Packed<T, N> packed, float (&to)[N]) {
  if constexpr (N == 1) {
    to[0] = ToFloat(packed);
  } else {
    internal::Unpack<T, N>(packed, to);
  }
}

template <typename T, int N>
__device__ Packed<T, N> Pack(const float (&from)[N]) {
  if constexpr (N == 1) {
    return FromFloat<T>(from[0]);
  } else {
    return internal::Pack<T, N>(from);
  }
}

// Loads N elements from `from`, which is aligned to all of them together.
template <typename T, int N>
__device__ void Load(const T* from, float (&to)[N]) {
  if constexpr (N == 1) {
    to[0] = ToFloat(*from);
  } else {
    internal::Unpack<T, N>(*reinterpret_cast<const internal::WordOf<T, N>*>(from), to);
  }
}

// Stores to global memory with one instruction. The compiler divides many an assignment into four,
// each of which writes a quarter of every sector and costs as much as the whole.
template <typename T, int N>
__device__ void Store(T* to, const float (&from)[N]) {
  if constexpr (N == 1) {
    *to = FromFloat<T>(from[0]);
  } else {
    __stwb(reinterpret_cast<Packed<T, N>*>(to), Pack<T, N>(from));
  }
}
template <typename T, int N>
__device__ void StorePacked(T* to, Packed<T, N> packed) {
  if constexpr (N == 1) {
    *to = packed;
  } else {
    __stcg(reinterpret_cast<Packed<T, N>*>(to), packed);
  }
}

// Stores to shared memory.
template <typename T, int N>
__device__ void StoreShared(T* to, const float (&from)[N]) {
  *reinterpret_cast<Packed<T, N>*>(to) = Pack<T, N>(from);
}

// Do the same for data that are not touched again soon: they are the first to leave the cache.
template <typename T, int N>
__device__ void LoadStreaming(const T* from, float (&to)[N]) {
  if constexpr (N == 1) {
    to[0] = ToFloat(*from);
  } else {
    internal::Unpack<T, N>(__ldcs(reinterpret_cast<const internal::WordOf<T, N>*>(from)), to);
  }
}

template <typename T, int N>
__device__ void StoreStreaming(T* to, const float (&from)[N]) {
  if constexpr (N == 1) {
    *to = FromFloat<T>(from[0]);
  } else {
    __stcs(reinterpret_cast<internal::WordOf<T, N>*>(to), internal::Pack<T, N>(from));
  }
}

// Calls `function(T{}, width)` with the element type and, as a std::integral_constant, the number
// of elements in a vector: kVectorWidth<T> if `vectors(kVectorWidth<T>)`, otherwise 1.
template <typename Vectors, typename Function>
cudaError_t DispatchTypeAndWidth(ElementType type, Vectors vectors, Function function) {
  const auto dispatch_width = [&](auto element) {
    constexpr int kWidth = kVectorWidth<decltype(element)>;
    return vectors(kWidth) ? function(element, std::integral_constant<int, kWidth>())
                           : function(element, std::integral_constant<int, 1>());
  };
  return type == ElementType::kFloat32 ? dispatch_width(float{}) : dispatch_width(__nv_bfloat16{});
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_VECTOR_CUH_
