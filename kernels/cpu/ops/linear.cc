#include "kernels/ops/linear.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/ops/activation.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/few_rows.h"
#include "kernels/cpu/ops/gradient_products.h"
#include "kernels/cpu/ops/images/transpose.h"
#include "kernels/cpu/products/matrix_product.h"
#include "kernels/cpu/runtime/first_error.h"

namespace stagecoach::kernels {
namespace {

// The number of columns of a weight matrix that one call of a product handles. Measured on (64,
// 2304) x (2304, 2304): tiles of 288 to 1152 run forward within 10 % of the whole product, and
// accumulate weight gradients 30 % faster than that, since a tile of the gradient stays in the
// cache.
constexpr int64_t kTile = 576;
// The number of rows of elementwise work that one tile handles.
constexpr int64_t kRowTile = 16;
constexpr int64_t kScratchAlignment = 64;

// Names of extents are those of kernels/ops/linear.h: R rows, I inputs, O outputs. T is the type of
// activations and parameters.
template <typename T>
class CpuLinear final : public LinearOp {
 public:
  CpuLinear(const LinearShape& shape, int slots)
      : R_(shape.rows),
        I_(shape.inputs),
        O_(shape.outputs),
        activation_(shape.activation),
        has_bias_(shape.has_bias),
        independent_rows_(shape.independent_rows),
        quantized_(shape.quantized.has_value() ? std::optional<QuantizedTile>(*shape.quantized)
                                               : std::nullopt),
        slots_(slots),
        output_tiles_(O_, kTile),
        // The sums of products in float do not depend on the tiles, so each thread has one tile:
        // operands that all tiles need are packed once per tile.
        input_tiles_(I_, kIsFloat<T> ? (I_ + slots - 1) / slots : kTile),
        row_tiles_(R_, kRowTile) {}

  absl::Status Prepare() {
    if (independent_rows_) {
      scratchpad_bytes_ = AlignScratch(
          (quantized_.has_value() ? RowsTimesQuantizedScratch<T>(R_, output_tiles_.size, I_)
                                  : RowsTimesWeightsScratch<T>(R_, I_)) *
          SizeOf(DType::kFloat32));
      slot_bytes_ = scratchpad_bytes_ + SumBytes(R_ * output_tiles_.size);
      return absl::OkStatus();
    }
    const auto create = [&](const Tiling& tiles, auto shape_of) {
      return TiledProduct::Create(kTypeOf<T>, tiles, slots_, shape_of);
    };
    ASSIGN_OR_RETURN(z_product_, create(output_tiles_, [&](int64_t n) {
                       return ProductShape{
                           .m = R_, .n = n, .k = I_, .lda = I_, .ldb = O_, .ldc = SumStride()};
                     }));
    if constexpr (kIsFloat<T>) {
      slot_bytes_ = AlignScratch(std::max({InputGradientScratch(R_, input_tiles_.size, O_),
                                           WeightGradientScratch(R_, input_tiles_.size, O_)}) *
                                 SizeOf(DType::kFloat32));
      scratchpad_bytes_ = AlignScratch(z_product_.scratchpad_bytes());
      slot_bytes_ = std::max(slot_bytes_, scratchpad_bytes_);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(
        dx_product_, create(input_tiles_, [&](int64_t m) {
          return ProductShape{
              .m = m, .n = R_, .k = O_, .lda = O_, .transpose_b = true, .ldb = O_, .ldc = R_};
        }));
    ASSIGN_OR_RETURN(dw_product_, create(input_tiles_, [&](int64_t m) {
                       return ProductShape{.m = m,
                                           .n = O_,
                                           .k = R_,
                                           .transpose_a = true,
                                           .lda = I_,
                                           .ldb = O_,
                                           .ldc = O_,
                                           .may_accumulate = true};
                     }));
    for (const TiledProduct* product : {&z_product_, &dx_product_, &dw_product_}) {
      scratchpad_bytes_ = std::max(scratchpad_bytes_, AlignScratch(product->scratchpad_bytes()));
    }
    const int64_t sums = R_ * std::max(input_tiles_.size, output_tiles_.size);
    slot_bytes_ = scratchpad_bytes_ + SumBytes(sums);
    return absl::OkStatus();
  }

  int64_t workspace_bytes() const override { return slot_bytes_ * slots_; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                       const Tensor& z, const Tensor& y, std::byte* workspace) override {
    FirstError error;
    T* const kept = KeepsZ(activation_) ? Elements<T>(z) : nullptr;
    AsCpu(stream).ParallelFor(output_tiles_.count, [&](int tile, int slot) {
      const int64_t o = output_tiles_.begin(tile);
      const int64_t n = output_tiles_.length(tile);
      // Results that are rounded at the end are summed in a separate area.
      float* sums = nullptr;
      if constexpr (kIsFloat<T>) {
        sums = (kept != nullptr ? kept : y.f32()) + o;
      } else {
        sums = SumsOf(workspace, slot);
      }
      std::byte* const scratch = workspace + slot * slot_bytes_;
      if (quantized_.has_value()) {
        RowsTimesQuantized(R_, n, I_, Elements<T>(x), *quantized_,
                           static_cast<const std::byte*>(w.data), o, sums, SumStride(),
                           reinterpret_cast<float*>(scratch));
      } else if (independent_rows_) {
        RowsTimesWeights(R_, n, I_, Elements<T>(x), Elements<T>(w) + o, O_, sums, SumStride(),
                         reinterpret_cast<float*>(scratch));
      } else {
        error.Update(
            z_product_.Run(tile, slot, Elements<T>(x), Elements<T>(w) + o, false, sums, scratch));
      }
      for (int64_t r = 0; r < R_; ++r) {
        const int64_t row = r * O_ + o;
        float* const z_row = sums + r * SumStride();
        if (has_bias_) AddBias(Elements<T>(b) + o, n, z_row);
        if constexpr (!kIsFloat<T>) {
          if (kept != nullptr) Convert(z_row, n, kept + row);
        }
        Activate(n, z_row, Elements<T>(y) + row);
      }
    });
    return error.Take();
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& y, const Tensor& z,
                             const Tensor& w, const Tensor& dz, const Tensor& dx,
                             std::byte* workspace) override {
    CpuStream& cpu = AsCpu(stream);
    const T* gradient = Elements<T>(dy);
    if (activation_ != Activation::kNone) {
      cpu.ParallelFor(row_tiles_.count, [&](int tile, int) {
        const int64_t begin = row_tiles_.begin(tile) * O_;
        const int64_t n = row_tiles_.length(tile) * O_;
        const Tensor& known = KeepsZ(activation_) ? z : y;
        ActivationBackward(Elements<T>(dy) + begin, Elements<T>(known) + begin, n,
                           Elements<T>(dz) + begin);
      });
      gradient = Elements<T>(dz);
    }
    if (dx.empty()) return absl::OkStatus();
    if constexpr (kIsFloat<T>) {
      cpu.ParallelFor(input_tiles_.count, [&](int tile, int slot) {
        const int64_t i = input_tiles_.begin(tile);
        InputGradient(R_, input_tiles_.length(tile), O_, gradient, w.f32() + i * O_, dx.f32() + i,
                      I_, reinterpret_cast<float*>(workspace + slot * slot_bytes_));
      });
      return absl::OkStatus();
    }
    // dx^T = w dz^T reads each row of w in place; computing dx = dz w^T would make oneDNN repack
    // all of w.
    FirstError error;
    cpu.ParallelFor(input_tiles_.count, [&](int tile, int slot) {
      const int64_t i = input_tiles_.begin(tile);
      float* const dx_transposed = SumsOf(workspace, slot);
      error.Update(dx_product_.Run(tile, slot, Elements<T>(w) + i * O_, gradient, false,
                                   dx_transposed, workspace + slot * slot_bytes_));
      Transpose(dx_transposed, R_, input_tiles_.length(tile), R_, Elements<T>(dx) + i, I_);
    });
    return error.Take();
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dz, const Tensor& dw,
                              const Tensor& db, bool accumulate, std::byte* workspace) override {
    FirstError error;
    // There is one more tile than those of dw: the bias.
    AsCpu(stream).ParallelFor(input_tiles_.count + (has_bias_ ? 1 : 0), [&](int tile, int slot) {
      if (tile == input_tiles_.count) {
        ColumnSums(Elements<T>(dz), accumulate, db.f32());
        return;
      }
      const int64_t i = input_tiles_.begin(tile);
      if constexpr (kIsFloat<T>) {
        WeightGradient(R_, input_tiles_.length(tile), O_, x.f32() + i, I_, dz.f32(), accumulate,
                       dw.f32() + i * O_, reinterpret_cast<float*>(workspace + slot * slot_bytes_));
        return;
      }
      error.Update(dw_product_.Run(tile, slot, Elements<T>(x) + i, Elements<T>(dz), accumulate,
                                   dw.f32() + i * O_, workspace + slot * slot_bytes_));
    });
    return error.Take();
  }

 private:
  static int64_t AlignScratch(int64_t bytes) {
    return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  }

  // Returns the size of sums that must be rounded.
  static int64_t SumBytes(int64_t count) {
    return kIsFloat<T> ? 0 : AlignScratch(count * SizeOf(DType::kFloat32));
  }

  // Between rows of sums that become z.
  int64_t SumStride() const { return kIsFloat<T> ? O_ : output_tiles_.size; }
  float* SumsOf(std::byte* workspace, int slot) const {
    return reinterpret_cast<float*>(workspace + slot * slot_bytes_ + scratchpad_bytes_);
  }

  static void AddBias(const T* b, int64_t n, float* z) {
    for (int64_t i = 0; i < n; ++i) z[i] += b[i];
  }

  // z may be y.
  void Activate(int64_t n, const float* z, T* y) const {
    if (kIsFloat<T> && activation_ == Activation::kNone) return;  // z is y
    WithActivation(activation_, [&](auto activation) {
      for (int64_t i = 0; i < n; ++i) y[i] = activation.Of(z[i]);
    });
  }

  // `known` is z if KeepsZ, otherwise y.
  void ActivationBackward(const T* dy, const T* known, int64_t n, T* dz) const {
    WithActivation(activation_, [&](auto activation) {
      for (int64_t i = 0; i < n; ++i) dz[i] = activation.Gradient(dy[i], known[i]);
    });
  }

  void ColumnSums(const T* dz, bool accumulate, float* db) const {
    if (!accumulate) std::fill_n(db, O_, 0.0F);
    for (int64_t r = 0; r < R_; ++r) {
      for (int64_t o = 0; o < O_; ++o) db[o] += dz[r * O_ + o];
    }
  }

  const int64_t R_, I_, O_;
  const Activation activation_;
  const bool has_bias_;
  const bool independent_rows_;
  const std::optional<QuantizedTile> quantized_;
  const int slots_;
  const Tiling output_tiles_, input_tiles_, row_tiles_;
  TiledProduct z_product_, dx_product_, dw_product_;
  // Workspace of a slot: the products' scratchpad, then sums of a tile: of dx transposed, or, if
  // they must be rounded, of z.
  int64_t scratchpad_bytes_ = 0;
  int64_t slot_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearOp>> CreateOnCpu(const LinearShape& shape, Device& device) {
  RETURN_IF_ERROR(CheckLinear(shape, kMaxExtent));
  if (shape.quantized.has_value() && !shape.independent_rows) {
    return CreateExpandedLinear(shape, device);
  }
  return ForActivationType(device, [&]<typename T>(T) -> absl::StatusOr<std::unique_ptr<LinearOp>> {
    auto op = std::make_unique<CpuLinear<T>>(shape, AsCpu(device.stream()).threads());
    RETURN_IF_ERROR(op->Prepare());
    return op;
  });
}

}  // namespace stagecoach::kernels
