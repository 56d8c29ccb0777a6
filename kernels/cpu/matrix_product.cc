#include "kernels/cpu/matrix_product.h"

#include <array>
#include <dnnl.hpp>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/threads.h"

namespace stagecoach::kernels {
namespace {

using Desc = dnnl::memory::desc;

absl::Status ToStatus(dnnl_status_t status, const char* what) {
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("oneDNN: ", what, " failed with status ", status));
}

// One processor, one engine: shared by all products of the process.
const dnnl::engine& CpuEngine() {
  static const dnnl::engine* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

Desc Matrix(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  return Desc({rows, columns}, dnnl::memory::data_type::f32,
              dnnl::memory::dims{row_stride, column_stride});
}

}  // namespace

absl::Status Gemm(bool transpose_a, int64_t m, int64_t n, int64_t k, const float* a, int64_t lda,
                  const float* b, int64_t ldb, bool accumulate, float* c, int64_t ldc) {
  return ToStatus(dnnl_sgemm(transpose_a ? 'T' : 'N', 'N', m, n, k, 1.0F, a, lda, b, ldb,
                             accumulate ? 1.0F : 0.0F, c, ldc),
                  "matrix product");
}

struct TransposedProduct::State {
  // The objects of oneDNN that concurrent callers must not share.
  struct Slot {
    dnnl::stream stream;
    dnnl::memory a, b, c, scratchpad;
  };
  dnnl::matmul primitive;
  std::vector<Slot> slots;
  int64_t scratchpad_bytes = 0;
};

TransposedProduct::TransposedProduct(std::unique_ptr<State> state) : state_(std::move(state)) {}
TransposedProduct::~TransposedProduct() = default;

absl::StatusOr<std::unique_ptr<TransposedProduct>> TransposedProduct::Create(int64_t m, int64_t n,
                                                                             int64_t k, int slots) {
  SingleThreadedLibraries single_threaded;
  try {
    const Desc a = Matrix(m, k, k, 1);
    const Desc b = Matrix(k, n, 1, k);
    const Desc c = Matrix(m, n, n, 1);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes,
                                                   CpuEngine());
    auto state = std::make_unique<State>();
    state->primitive = dnnl::matmul(description);
    state->scratchpad_bytes = static_cast<int64_t>(description.scratchpad_desc().get_size());
    for (int slot = 0; slot < slots; ++slot) {
      const auto unplaced = [](const Desc& desc) {
        return dnnl::memory(desc, CpuEngine(), nullptr);
      };
      state->slots.push_back({dnnl::stream(CpuEngine()), unplaced(a), unplaced(b), unplaced(c),
                              unplaced(description.scratchpad_desc())});
    }
    return std::unique_ptr<TransposedProduct>(new TransposedProduct(std::move(state)));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("oneDNN: no product of (", m, ", ", k, ") and (", k,
                                            ", ", n, "): ", error.what()));
  }
}

int64_t TransposedProduct::scratchpad_bytes() const { return state_->scratchpad_bytes; }

absl::Status TransposedProduct::Run(int slot, const float* a, const float* b, float* c,
                                    std::byte* scratchpad) const {
  const State::Slot& s = state_->slots[static_cast<size_t>(slot)];
  // The C interface: the C++ one builds a hash map on each call.
  const auto place = [](const dnnl::memory& memory, const void* data) {
    return dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(data));
  };
  for (const auto& [memory, data] : {std::pair<const dnnl::memory*, const void*>{&s.a, a},
                                     {&s.b, b},
                                     {&s.c, c},
                                     {&s.scratchpad, scratchpad}}) {
    if (place(*memory, data) != dnnl_success) return absl::InternalError("oneDNN: bad operand");
  }
  const std::array<dnnl_exec_arg_t, 4> arguments = {{{DNNL_ARG_SRC, s.a.get()},
                                                     {DNNL_ARG_WEIGHTS, s.b.get()},
                                                     {DNNL_ARG_DST, s.c.get()},
                                                     {DNNL_ARG_SCRATCHPAD, s.scratchpad.get()}}};
  return ToStatus(dnnl_primitive_execute(state_->primitive.get(), s.stream.get(),
                                         static_cast<int>(arguments.size()), arguments.data()),
                  "matrix product");
}

}  // namespace stagecoach::kernels
