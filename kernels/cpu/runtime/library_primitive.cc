#include "kernels/cpu/runtime/library_primitive.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/runtime/library_isa.h"

namespace stagecoach::kernels {

const dnnl::engine& CpuEngine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

bool LibraryHasBfloat16() { return LibraryUses(dnnl_cpu_isa_avx512_core_bf16); }

absl::Status FromLibrary(dnnl_status_t status, const char* what) {
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("oneDNN: ", what, " failed with status ", status));
}

dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

LibraryPrimitive::LibraryPrimitive(const dnnl::primitive& primitive,
                                   const dnnl::memory::desc& scratchpad,
                                   std::vector<Operand> operands, int slots)
    : primitive_(primitive), scratchpad_bytes_(static_cast<int64_t>(scratchpad.get_size())) {
  operands.push_back({DNNL_ARG_SCRATCHPAD, scratchpad});
  for (int i = 0; i < slots; ++i) {
    Slot slot{.stream = dnnl::stream(CpuEngine())};
    for (const Operand& operand : operands) {
      slot.operands.emplace_back(operand.desc, CpuEngine(), nullptr);
      slot.arguments.push_back({operand.argument, slot.operands.back().get()});
    }
    slots_.push_back(std::move(slot));
  }
}

absl::Status LibraryPrimitive::Run(int slot, absl::Span<const void* const> data,
                                   std::byte* scratchpad) const {
  const Slot& s = slots_[static_cast<size_t>(slot)];
  // The C interface is used because the C++ one builds a hash map on each call.
  for (size_t i = 0; i < s.operands.size(); ++i) {
    const void* const place = i < data.size() ? data[i] : scratchpad;
    if (dnnl_memory_set_data_handle(s.operands[i].get(), const_cast<void*>(place)) !=
        dnnl_success) {
      return absl::InternalError("oneDNN: bad operand");
    }
  }
  return FromLibrary(
      dnnl_primitive_execute(primitive_.get(), s.stream.get(), static_cast<int>(s.arguments.size()),
                             s.arguments.data()),
      "primitive");
}

}  // namespace stagecoach::kernels
