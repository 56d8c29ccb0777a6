#include "kernels/cpu/products/matrix_product.h"

#include <algorithm>
#include <array>
#include <dnnl.hpp>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/products/lane_sum.h"
#include "kernels/cpu/runtime/library_primitive.h"
#include "kernels/cpu/runtime/threads.h"

namespace stagecoach::kernels {
namespace {

using Desc = dnnl::memory::desc;
using Type = dnnl::memory::data_type;

Desc Matrix(Type type, int64_t rows, int64_t columns, bool is_transposed, int64_t leading) {
  return Desc({rows, columns}, type,
              is_transposed ? dnnl::memory::dims{1, leading} : dnnl::memory::dims{leading, 1});
}

LibraryPrimitive MakePrimitive(Type type, const ProductShape& shape, bool accumulate, int slots) {
  const Desc a = Matrix(type, shape.m, shape.k, shape.transpose_a, shape.lda);
  const Desc b = Matrix(type, shape.k, shape.n, shape.transpose_b, shape.ldb);
  const Desc c = Matrix(Type::f32, shape.m, shape.n, false, shape.ldc);
  dnnl::primitive_attr attributes = UserScratchpad();
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  const auto description = Describe<dnnl::matmul>(attributes, a, b, c);
  return LibraryPrimitive(dnnl::matmul(description), description,
                          {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}}, slots);
}

// Whether c is one column of a wider matrix, or a is one row of a taller one that is stored
// transposed. oneDNN 3.7 takes such vectors for dense ones, and reads or writes their neighbors.
bool HasStridedVector(const ProductShape& shape) {
  return (shape.n == 1 && shape.ldc > 1 && shape.m > 1) ||
         (shape.m == 1 && shape.transpose_a && shape.lda > 1 && shape.k > 1);
}

template <typename T>
void MultiplyStridedVector(const ProductShape& shape, const T* a, const T* b, bool accumulate,
                           float* c) {
  const int64_t a_row = shape.transpose_a ? 1 : shape.lda;
  const int64_t a_column = shape.transpose_a ? shape.lda : 1;
  const int64_t b_row = shape.transpose_b ? 1 : shape.ldb;
  const int64_t b_column = shape.transpose_b ? shape.ldb : 1;
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      float& sum = c[i * shape.ldc + j];
      sum = (accumulate ? sum : 0.0F) + LaneSum(shape.k, [&](int64_t l) {
              return static_cast<float>(a[i * a_row + l * a_column]) *
                     static_cast<float>(b[l * b_row + j * b_column]);
            });
    }
  }
}

// Has the library generate its stateless product's code, which takes some 25 ms at the first call,
// so that this does not happen within the first step or prompt.
void PrepareStatelessProduct() {
  static const bool is_prepared [[maybe_unused]] = [] {
    constexpr int64_t kSome = 16;
    const std::array<float, kSome * kSome> a{}, b{};
    std::array<float, kSome * kSome> c{};
    SingleThreadedLibraries single_threaded;
    return dnnl_sgemm('N', 'N', kSome, kSome, kSome, 1.0F, a.data(), kSome, b.data(), kSome, 0.0F,
                      c.data(), kSome) == dnnl_success;
  }();
}

}  // namespace

struct MatrixProduct::State {
  ProductShape shape;
  DType type;
  bool is_stateless = false;
  bool has_strided_vector = false;
  // The first overwrites c, the second adds to it.
  std::array<LibraryPrimitive, 2> primitives;
};

MatrixProduct::MatrixProduct(std::unique_ptr<State> state) : state_(std::move(state)) {}
MatrixProduct::~MatrixProduct() = default;

absl::StatusOr<std::unique_ptr<MatrixProduct>> MatrixProduct::Create(DType type,
                                                                     const ProductShape& shape,
                                                                     int slots) {
  auto state = std::make_unique<State>();
  state->shape = shape;
  state->type = type;
  state->is_stateless = type == DType::kFloat32 && !shape.transpose_b;
  state->has_strided_vector = !state->is_stateless && HasStridedVector(shape);
  if (state->is_stateless) {
    PrepareStatelessProduct();
  } else if (!state->has_strided_vector) {
    SingleThreadedLibraries single_threaded;
    const Type library_type = LibraryType(type);
    try {
      state->primitives[0] = MakePrimitive(library_type, shape, false, slots);
      if (shape.may_accumulate) {
        state->primitives[1] = MakePrimitive(library_type, shape, true, slots);
      }
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("oneDNN: no product of (", shape.m, ", ", shape.k,
                                              ") and (", shape.k, ", ", shape.n,
                                              "): ", error.what()));
    }
  }
  return std::unique_ptr<MatrixProduct>(new MatrixProduct(std::move(state)));
}

int64_t MatrixProduct::scratchpad_bytes() const {
  return std::max(state_->primitives[0].scratchpad_bytes(),
                  state_->primitives[1].scratchpad_bytes());
}

absl::Status MatrixProduct::Run(int slot, const void* a, const void* b, bool accumulate, float* c,
                                std::byte* scratchpad) const {
  const ProductShape& shape = state_->shape;
  STAGECOACH_CHECK(shape.may_accumulate || !accumulate, "a product that does not accumulate");
  if (state_->has_strided_vector) {
    const auto multiply = [&](auto zero) {
      using T = decltype(zero);
      MultiplyStridedVector(shape, static_cast<const T*>(a), static_cast<const T*>(b), accumulate,
                            c);
    };
    state_->type == DType::kFloat32 ? multiply(0.0F) : multiply(Bfloat16());
    return absl::OkStatus();
  }
  if (!state_->is_stateless) {
    return state_->primitives[accumulate ? 1 : 0].Run(slot, {a, b, c}, scratchpad);
  }
  return FromLibrary(
      dnnl_sgemm(shape.transpose_a ? 'T' : 'N', 'N', shape.m, shape.n, shape.k, 1.0F,
                 static_cast<const float*>(a), shape.lda, static_cast<const float*>(b), shape.ldb,
                 accumulate ? 1.0F : 0.0F, c, shape.ldc),
      "matrix product");
}

absl::StatusOr<TiledProduct> TiledProduct::Create(
    DType type, const Tiling& tiles, int slots,
    absl::FunctionRef<ProductShape(int64_t length)> shape_of) {
  TiledProduct product;
  product.last_tile_ = tiles.count - 1;
  if (tiles.count > 1) {
    ASSIGN_OR_RETURN(product.whole_, MatrixProduct::Create(type, shape_of(tiles.length(0)), slots));
  }
  ASSIGN_OR_RETURN(product.last_,
                   MatrixProduct::Create(type, shape_of(tiles.last_length()), slots));
  return product;
}

int64_t TiledProduct::scratchpad_bytes() const {
  int64_t bytes = 0;
  for (const auto* product : {&whole_, &last_}) {
    if (*product != nullptr) bytes = std::max(bytes, (*product)->scratchpad_bytes());
  }
  return bytes;
}

absl::Status TiledProduct::Run(int tile, int slot, const void* a, const void* b, bool accumulate,
                               float* c, std::byte* scratchpad) const {
  const MatrixProduct& product = tile == last_tile_ ? *last_ : *whole_;
  return product.Run(slot, a, b, accumulate, c, scratchpad);
}

}  // namespace stagecoach::kernels
