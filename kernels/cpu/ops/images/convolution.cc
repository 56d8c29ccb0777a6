#include "kernels/ops/convolution.h"

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/products/lane_sum.h"
#include "kernels/cpu/runtime/first_error.h"
#include "kernels/cpu/runtime/library_isa.h"
#include "kernels/cpu/runtime/library_primitive.h"
#include "kernels/cpu/runtime/threads.h"

namespace stagecoach::kernels {
namespace {

using dnnl::memory;
using dnnl::prop_kind;

// A pass is shared among threads in at most this many tasks, whose number depends on the shape
// alone.
constexpr int64_t kConvolutionTasks = 8;
// The library's blocks of channels: a part of a weight gradient has whole ones.
constexpr int64_t kChannelBlock = 16;
constexpr int64_t kAreaAlignment = 64;

int64_t AlignArea(int64_t bytes) {
  return (bytes + kAreaAlignment - 1) / kAreaAlignment * kAreaAlignment;
}

memory::desc Plain(const memory::dims& dims, memory::data_type type) {
  memory::dims strides(dims.size(), 1);
  for (size_t i = dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dims[i];
  return {dims, type, strides};
}

// Lets the library choose a layout, which has blocks of channels innermost. Passes take 1.3 to 2.5
// times as long in plain layouts; reordering what they read and write takes a few percent. (oneDNN
// 3 has other names for what a description has.)
template <typename Desc>
Desc Chosen(const Desc& plain) {
  if constexpr (requires { plain.get_dims(); }) {
    return {plain.get_dims(), plain.get_data_type(), memory::format_tag::any};
  } else {
    return {plain.dims(), plain.data_type(), memory::format_tag::any};
  }
}

// Copies from one layout to another, or adds to the present contents. A default-constructed one
// does nothing.
class Reordering {
 public:
  Reordering() = default;
  Reordering(const memory::desc& from, const memory::desc& to, bool adds, int slots)
      : is_needed_(true) {
    dnnl::primitive_attr attributes = UserScratchpad();
    if (adds) {
      dnnl::post_ops sum;
      sum.append_sum(1.0F);
      attributes.set_post_ops(sum);
    }
    const dnnl::reorder::primitive_desc description(CpuEngine(), from, CpuEngine(), to, attributes);
    reorder_ = LibraryPrimitive(dnnl::reorder(description), description,
                                {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}, slots);
  }

  int64_t scratchpad_bytes() const { return reorder_.scratchpad_bytes(); }
  absl::Status Run(int slot, const void* from, void* to, std::byte* scratchpad) const {
    return is_needed_ ? reorder_.Run(slot, {from, to}, scratchpad) : absl::OkStatus();
  }

 private:
  bool is_needed_ = false;
  LibraryPrimitive reorder_;
};

// An operand of a primitive in the layout that it works on: in place if that is plain, or in an
// area of its own.
struct Area {
  memory::desc plain, chosen;

  int64_t bytes() const {
    return plain == chosen ? 0 : AlignArea(static_cast<int64_t>(chosen.get_size()));
  }
  void* At(std::byte* place, void* data) const { return plain == chosen ? data : place; }
  Reordering In(int slots) const {
    return plain == chosen ? Reordering() : Reordering(plain, chosen, false, slots);
  }
  Reordering Out(int slots) const {
    return plain == chosen ? Reordering() : Reordering(chosen, plain, false, slots);
  }
};

// A pass over blocks of samples: to = convolution of (from, weights), forward, or backward to the
// input. Its workspace holds the weights, then for each slot `from`, `to` and a scratchpad.
struct SamplePass {
  Area from, weights, to;
  LibraryPrimitive primitive;
  Reordering weights_in, from_in, to_out;
  int64_t scratchpad_bytes = 0;

  void Finish(int slots) {
    weights_in = weights.In(1);
    from_in = from.In(slots);
    to_out = to.Out(slots);
    scratchpad_bytes =
        AlignArea(std::max({primitive.scratchpad_bytes(), weights_in.scratchpad_bytes(),
                            from_in.scratchpad_bytes(), to_out.scratchpad_bytes()}));
  }
  int64_t slot_bytes() const { return from.bytes() + to.bytes() + scratchpad_bytes; }
  int64_t workspace_bytes(int slots) const { return weights.bytes() + slots * slot_bytes(); }
};

// Names of extents are those of kernels/ops/convolution.h. T is the type of activations and
// parameters.
template <typename T>
class CpuConvolution final : public ConvolutionOp {
 public:
  CpuConvolution(const ConvolutionShape& shape, int slots)
      : shape_(shape),
        N_(shape.samples),
        O_(shape.outputs),
        x_size_(shape.inputs * shape.height * shape.width),
        area_(shape.output_height() * shape.output_width()),
        slots_(slots),
        block_(BlockOf(shape.samples)),
        parts_(PartsOf(shape)) {}

  // May throw dnnl::error.
  void Prepare() {
    const auto forward = ForwardDescription(block_, O_);
    std::vector<LibraryPrimitive::Operand> operands = {{DNNL_ARG_SRC, forward.src_desc()},
                                                       {DNNL_ARG_WEIGHTS, forward.weights_desc()},
                                                       {DNNL_ARG_DST, forward.dst_desc()}};
    if (shape_.has_bias) operands.push_back({DNNL_ARG_BIAS, forward.bias_desc()});
    forward_ = {.from = {X(block_), forward.src_desc()},
                .weights = {Weights(O_), forward.weights_desc()},
                .to = {Y(block_), forward.dst_desc()},
                .primitive = LibraryPrimitive(dnnl::convolution_forward(forward), forward,
                                              std::move(operands), slots_)};
    forward_.Finish(slots_);
    PrepareBackwardInput(forward);
    PrepareBackwardWeight();
    workspace_bytes_ = std::max({forward_.workspace_bytes(slots_), input_.workspace_bytes(slots_),
                                 x_.bytes() + slots_ * weight_slot_bytes()});
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                       const Tensor& y, std::byte* workspace) override {
    return RunPass(stream, forward_, Elements<T>(x), x_size_, Elements<T>(w), Elements<T>(y),
                   O_ * area_, shape_.has_bias ? Elements<T>(b) : nullptr, workspace);
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& w,
                             const Tensor& /*dx_addend*/, const Tensor& dx,
                             std::byte* workspace) override {
    return RunPass(stream, input_, Elements<T>(dy), O_ * area_, Elements<T>(w), Elements<T>(dx),
                   x_size_, nullptr, workspace);
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& dw,
                              const Tensor& db, bool accumulate, std::byte* workspace) override {
    CpuStream& cpu = AsCpu(stream);
    FirstError error;
    void* const own_x = x_.At(workspace, x.data);
    std::byte* const slots = workspace + x_.bytes();
    // x is reordered as a whole, because a block of it may lie anywhere in the library's layout.
    error.Update(x_in_.Run(0, x.data, own_x, slots + weight_areas_bytes()));
    const int64_t outputs = O_ / parts_;
    const int64_t part_size = dw.elements() / parts_;
    cpu.ParallelFor(static_cast<int>(parts_), [&](int part, int slot) {
      std::byte* const areas = slots + slot * weight_slot_bytes();
      std::byte* const scratchpad = areas + weight_areas_bytes();
      T* const part_dy = Elements<T>(dy) + part * outputs * area_;
      float* const part_dw = dw.f32() + part * part_size;
      void* const own_dy = dy_.At(areas, part_dy);
      std::byte* const own_dw = areas + dy_.bytes();
      error.Update(dy_in_.Run(slot, part_dy, own_dy, scratchpad));
      error.Update(weight_.Run(slot, {own_x, own_dy, own_dw}, scratchpad));
      error.Update((accumulate ? dw_add_ : dw_out_).Run(slot, own_dw, part_dw, scratchpad));
    });
    if (shape_.has_bias) {
      cpu.ParallelFor(static_cast<int>(O_), [&](int o, int) {
        float sum = accumulate ? db.f32()[o] : 0.0F;
        for (int64_t n = 0; n < N_; ++n) {
          const T* const plane = Elements<T>(dy) + (n * O_ + o) * area_;
          sum += LaneSum(area_, [&](int64_t i) -> float { return plane[i]; });
        }
        db.f32()[o] = sum;
      });
    }
    return error.Take();
  }

 private:
  // Returns the samples of a task: a divisor of all, so that one primitive is enough.
  static int64_t BlockOf(int64_t samples) {
    int64_t block = (samples + kConvolutionTasks - 1) / kConvolutionTasks;
    while (samples % block != 0) --block;
    return block;
  }

  // Returns the number of parts into which the outputs of a weight gradient are divided.
  static int64_t PartsOf(const ConvolutionShape& shape) {
    if (shape.groups > 1) return 1;
    int64_t parts = kConvolutionTasks;
    while (parts > 1 && shape.outputs % (parts * kChannelBlock) != 0) parts /= 2;
    return parts;
  }

  memory::desc X(int64_t samples) const {
    return Plain({samples, shape_.inputs, shape_.height, shape_.width}, kType);
  }
  memory::desc Y(int64_t samples) const {
    return Plain({samples, O_, shape_.output_height(), shape_.output_width()}, kType);
  }
  memory::desc Weights(int64_t outputs, memory::data_type type = kType) const {
    const int64_t G = shape_.groups, K = shape_.kernel;
    if (G > 1) return Plain({G, outputs / G, shape_.inputs / G, K, K}, type);
    return Plain({outputs, shape_.inputs, K, K}, type);
  }
  memory::desc WeightGradients(int64_t outputs) const {
    return Weights(outputs, memory::data_type::f32);
  }
  // Describes some outputs of all samples, among the others.
  memory::desc PartOfY(int64_t outputs) const {
    const int64_t Q = shape_.output_width();
    return {{N_, outputs, shape_.output_height(), Q}, kType, memory::dims{O_ * area_, area_, Q, 1}};
  }

  memory::dims Strides() const { return {shape_.stride, shape_.stride}; }
  memory::dims Padding() const { return {shape_.padding, shape_.padding}; }
  static constexpr auto kType = LibraryType(kTypeOf<T>);
  static constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

  dnnl::convolution_forward::primitive_desc ForwardDescription(int64_t samples,
                                                               int64_t outputs) const {
    using Forward = dnnl::convolution_forward;
    const memory::desc x = Chosen(X(samples)), w = Chosen(Weights(outputs));
    const memory::desc y = {{samples, outputs, shape_.output_height(), shape_.output_width()},
                            kType,
                            memory::format_tag::any};
    const dnnl::primitive_attr attributes = UserScratchpad();
    return shape_.has_bias
               ? Describe<Forward>(attributes, prop_kind::forward_training, kAlgorithm, x, w,
                                   Plain({outputs}, kType), y, Strides(), Padding(), Padding())
               : Describe<Forward>(attributes, prop_kind::forward_training, kAlgorithm, x, w, y,
                                   Strides(), Padding(), Padding());
  }

  void PrepareBackwardInput(const dnnl::convolution_forward::primitive_desc& forward) {
    using Backward = dnnl::convolution_backward_data;
    const auto description = DescribeBackward<Backward>(
        UserScratchpad(), forward, kAlgorithm, Chosen(X(block_)), Chosen(Weights(O_)),
        Chosen(Y(block_)), Strides(), Padding(), Padding());
    input_ = {.from = {Y(block_), description.diff_dst_desc()},
              .weights = {Weights(O_), description.weights_desc()},
              .to = {X(block_), description.diff_src_desc()},
              .primitive = LibraryPrimitive(Backward(description), description,
                                            {{DNNL_ARG_DIFF_DST, description.diff_dst_desc()},
                                             {DNNL_ARG_WEIGHTS, description.weights_desc()},
                                             {DNNL_ARG_DIFF_SRC, description.diff_src_desc()}},
                                            slots_)};
    input_.Finish(slots_);
  }

  void PrepareBackwardWeight() {
    using Backward = dnnl::convolution_backward_weights;
    const int64_t outputs = O_ / parts_;
    const auto description =
        DescribeBackward<Backward>(UserScratchpad(), ForwardDescription(N_, outputs), kAlgorithm,
                                   Chosen(X(N_)), Chosen(WeightGradients(outputs)),
                                   Chosen(PartOfY(outputs)), Strides(), Padding(), Padding());
    x_ = {X(N_), description.src_desc()};
    dy_ = {PartOfY(outputs), description.diff_dst_desc()};
    dw_ = {WeightGradients(outputs), description.diff_weights_desc()};
    weight_ = LibraryPrimitive(Backward(description), description,
                               {{DNNL_ARG_SRC, x_.chosen},
                                {DNNL_ARG_DIFF_DST, dy_.chosen},
                                {DNNL_ARG_DIFF_WEIGHTS, dw_.chosen}},
                               slots_);
    x_in_ = x_.In(1);
    dy_in_ = dy_.In(slots_);
    dw_out_ = Reordering(dw_.chosen, dw_.plain, false, slots_);
    dw_add_ = Reordering(dw_.chosen, dw_.plain, true, slots_);
    weight_scratchpad_bytes_ = AlignArea(
        std::max({weight_.scratchpad_bytes(), x_in_.scratchpad_bytes(), dy_in_.scratchpad_bytes(),
                  dw_out_.scratchpad_bytes(), dw_add_.scratchpad_bytes()}));
  }

  int64_t weight_areas_bytes() const {
    return dy_.bytes() + AlignArea(static_cast<int64_t>(dw_.chosen.get_size()));
  }
  int64_t weight_slot_bytes() const { return weight_areas_bytes() + weight_scratchpad_bytes_; }

  // `from_size` and `to_size` are the elements of a sample.
  absl::Status RunPass(Stream& stream, const SamplePass& pass, T* from, int64_t from_size, T* w,
                       T* to, int64_t to_size, const T* bias, std::byte* workspace) const {
    std::byte* const slots = workspace + pass.weights.bytes();
    void* const own_w = pass.weights.At(workspace, w);
    RETURN_IF_ERROR(pass.weights_in.Run(0, w, own_w, slots + pass.from.bytes() + pass.to.bytes()));
    FirstError error;
    AsCpu(stream).ParallelFor(static_cast<int>(N_ / block_), [&](int task, int slot) {
      std::byte* const areas = slots + slot * pass.slot_bytes();
      std::byte* const scratchpad = areas + pass.from.bytes() + pass.to.bytes();
      T* const block_from = from + task * block_ * from_size;
      T* const block_to = to + task * block_ * to_size;
      void* const own_from = pass.from.At(areas, block_from);
      void* const own_to = pass.to.At(areas + pass.from.bytes(), block_to);
      error.Update(pass.from_in.Run(slot, block_from, own_from, scratchpad));
      const std::array<const void*, 4> operands = {own_from, own_w, own_to, bias};
      error.Update(pass.primitive.Run(
          slot, absl::MakeConstSpan(operands).subspan(0, bias == nullptr ? 3 : 4), scratchpad));
      error.Update(pass.to_out.Run(slot, own_to, block_to, scratchpad));
    });
    return error.Take();
  }

  const ConvolutionShape shape_;
  const int64_t N_, O_;
  const int64_t x_size_;  // of a sample
  const int64_t area_;    // of a channel of y
  const int slots_;
  const int64_t block_;  // samples of a task of the forward pass and of the input's gradient
  const int64_t parts_;  // tasks of the weights' gradient, with equal numbers of outputs
  SamplePass forward_, input_;
  // The weights' gradient. Its workspace holds x, then for each slot dy and dw of a part and a
  // scratchpad.
  Area x_, dy_, dw_;
  LibraryPrimitive weight_;
  Reordering x_in_, dy_in_, dw_out_, dw_add_;
  int64_t weight_scratchpad_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
};

}  // namespace

namespace {

// With rows of outputs that are longer, what oneDNN 2.6 has for bfloat16 and AMX does not come to
// an end when it is made, or breaks off: from 737 on as far as was tried.
constexpr int64_t kWidestOnAmx = 512;

absl::Status CheckWidth(const ConvolutionShape& shape, const Device& device) {
  if (DNNL_VERSION_MAJOR >= 3 || device.activation_type() != DType::kBfloat16 ||
      shape.output_width() <= kWidestOnAmx || !LibraryUses(dnnl_cpu_isa_avx512_core_amx)) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      "a convolution in bf16 with outputs that are ", shape.output_width(), " wide, which oneDNN ",
      DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR,
      " cannot compute with AMX: use oneDNN 3, --precision fp32, or the environment variable "
      "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConvolutionOp>> CreateOnCpu(const ConvolutionShape& shape,
                                                           Device& device) {
  RETURN_IF_ERROR(CheckConvolution(shape, kMaxExtent));
  RETURN_IF_ERROR(CheckWidth(shape, device));
  return ForActivationType(
      device, [&]<typename T>(T) -> absl::StatusOr<std::unique_ptr<ConvolutionOp>> {
        auto op = std::make_unique<CpuConvolution<T>>(shape, AsCpu(device.stream()).threads());
        SingleThreadedLibraries single_threaded;
        try {
          op->Prepare();
        } catch (const std::exception& error) {
          return absl::InternalError(absl::StrCat("oneDNN: no convolution of ", shape.samples,
                                                  " samples: ", error.what()));
        }
        return op;
      });
}

}  // namespace stagecoach::kernels
