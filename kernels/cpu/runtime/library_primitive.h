#ifndef STAGECOACH_KERNELS_CPU_RUNTIME_LIBRARY_PRIMITIVE_H_
#define STAGECOACH_KERNELS_CPU_RUNTIME_LIBRARY_PRIMITIVE_H_

#include <cstddef>
#include <cstdint>
#include <dnnl.hpp>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"

// The CPU backend's interface to oneDNN's primitives.
namespace stagecoach::kernels {

// Returns the engine, which all primitives of the process share: there is one processor.
const dnnl::engine& CpuEngine();

// Returns whether products of bfloat16 have instructions of their own.
bool LibraryHasBfloat16();

// Returns the library's type for float32 or bfloat16.
constexpr dnnl::memory::data_type LibraryType(DType type) {
  return type == DType::kFloat32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

absl::Status FromLibrary(dnnl_status_t status, const char* what);

// Returns attributes that let a primitive work in memory that its caller provides.
dnnl::primitive_attr UserScratchpad();

// Describes a primitive of CpuEngine() by the arguments that oneDNN 2 takes as a `desc`, and oneDNN
// 3, which has none, one by one. Throws dnnl::error.
template <typename Primitive, typename... Arguments>
typename Primitive::primitive_desc Describe(const dnnl::primitive_attr& attributes,
                                            const Arguments&... arguments) {
  if constexpr (requires { typename Primitive::desc; }) {
    return {typename Primitive::desc(arguments...), attributes, CpuEngine()};
  } else {
    return {CpuEngine(), arguments..., attributes};
  }
}

// The same for a backward pass of what `forward` describes.
template <typename Primitive, typename Forward, typename... Arguments>
typename Primitive::primitive_desc DescribeBackward(const dnnl::primitive_attr& attributes,
                                                    const Forward& forward,
                                                    const Arguments&... arguments) {
  if constexpr (requires { typename Primitive::desc; }) {
    return {typename Primitive::desc(arguments...), attributes, CpuEngine(), forward};
  } else {
    return {CpuEngine(), arguments..., forward, attributes};
  }
}

// A oneDNN primitive with the objects that a call of it needs, created once. Creating one throws
// dnnl::error; a primitive is single-threaded if it was created within SingleThreadedLibraries.
class LibraryPrimitive {
 public:
  struct Operand {
    int argument;  // DNNL_ARG_...
    dnnl::memory::desc desc;
  };
  LibraryPrimitive() = default;
  // `slots` is how many threads may be inside Run at once, each with a slot of its own. The
  // description has UserScratchpad().
  template <typename Primitive>
  LibraryPrimitive(const Primitive& primitive,
                   const typename Primitive::primitive_desc& description,
                   std::vector<Operand> operands, int slots)
      : LibraryPrimitive(static_cast<const dnnl::primitive&>(primitive),
                         description.scratchpad_desc(), std::move(operands), slots) {}

  int64_t scratchpad_bytes() const { return scratchpad_bytes_; }  // of one slot

  // `data` are the operands, in the order in which the constructor got them.
  absl::Status Run(int slot, absl::Span<const void* const> data, std::byte* scratchpad) const;

 private:
  // The objects of oneDNN that concurrent callers must not share.
  struct Slot {
    dnnl::stream stream;
    std::vector<dnnl::memory> operands;  // the last one is the scratchpad
    std::vector<dnnl_exec_arg_t> arguments;
  };
  LibraryPrimitive(const dnnl::primitive& primitive, const dnnl::memory::desc& scratchpad,
                   std::vector<Operand> operands, int slots);

  dnnl::primitive primitive_;
  std::vector<Slot> slots_;
  int64_t scratchpad_bytes_ = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_RUNTIME_LIBRARY_PRIMITIVE_H_
