// A token of GPT-2, padded as after a prompt: blocks without both ends, in graphs. Products of few
// rows with quantized weights of linear layers of an 8-billion-parameter Llama.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "bench/cuda/cuda_bench.h"
#include "kernels/ops/cached_attention.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"
#include "kernels/quantized_matrix.h"

namespace stagecoach::bench {
namespace {

class GeneratingBlocks {
 public:
  GeneratingBlocks(const Settings& settings, engine::DeviceTimer& timer)
      : settings_(settings), timer_(timer) {
    kernels::Ops& ops = timer.device().ops();
    const auto linear = [&](int64_t inputs, int64_t outputs, kernels::Activation activation) {
      return Value(ops.Create(kernels::LinearShape{.rows = kRows,
                                                   .inputs = inputs,
                                                   .outputs = outputs,
                                                   .activation = activation,
                                                   .forward_only = true,
                                                   .weight_is_constant = true}));
    };
    norm_ = Value(ops.Create(kernels::LayerNormShape{.rows = kRows, .features = width_}));
    attention_ = Value(ops.Create(kernels::CachedAttentionShape{.rows = kRows,
                                                                .positions = settings.sizes.context,
                                                                .heads = width_ / head_size_,
                                                                .kv_heads = width_ / head_size_,
                                                                .head_size = head_size_}));
    products_.push_back({"qkv", width_, 3 * width_});
    products_.push_back({"projection", width_, width_});
    products_.push_back({"up and GELU", width_, 4 * width_, kernels::Activation::kGelu});
    products_.push_back({"down", 4 * width_, width_});
    int64_t workspace_bytes = attention_->workspace_bytes();
    for (Product& product : products_) {
      product.op = linear(product.inputs, product.outputs, product.activation);
      workspace_bytes = std::max(workspace_bytes, product.op->workspace_bytes());
      for (int i = 0; i < blocks(); ++i) {
        product.w.push_back(Random({product.inputs, product.outputs}));
      }
      product.bias = Random({product.outputs});
    }
    workspace_ = Value(timer.Workspace(workspace_bytes));
    for (int i = 0; i < blocks(); ++i) {
      caches_.push_back(Random({attention_->cache_bytes() / SizeOf(DType::kBfloat16)}));
    }
    statistics_ = Value(timer.Random(Shape{kRows, 2}, DType::kFloat32));
  }

  void Run() {
    Time("norm", "a norm of a sum", [&](Stream& stream, int) { return Norm(stream); });
    for (size_t i = 0; i < products_.size(); ++i) {
      Time(absl::StrCat("product_", i), products_[i].name,
           [&](Stream& stream, int block) { return Multiply(stream, i, block); });
      if (!products_[i].op->takes_neighbors()) continue;
      const bool has_norm = i % 2 == 0;
      Time(absl::StrCat("product_", i, has_norm ? "_of_norm" : "_and_sum"),
           absl::StrCat(products_[i].name, has_norm ? ", of a norm" : ", and a sum"),
           [&](Stream& stream, int block) { return MultiplyInBlock(stream, i, block); });
    }
    for (const int64_t position : settings_.sizes.generated_positions) {
      const kernels::CachedRow row{.position = position};
      const kernels::CachedRow* const first = Upload(timer_, &row, 1);
      const auto attend = [&](Stream& stream, int block) {
        std::byte* const cache = static_cast<std::byte*>(caches_[static_cast<size_t>(block)].data);
        return attention_->Forward(stream, first, qkv_, cache, x_, workspace_);
      };
      const std::string at = absl::StrFormat("at position %d", position);
      Time(absl::StrCat("attention_", position), absl::StrCat("attention ", at), attend);
      Time(absl::StrCat("block_", position), absl::StrCat("a whole block ", at),
           [&](Stream& stream, int block) -> absl::Status {
             RETURN_IF_ERROR(MultiplyInBlock(stream, 0, block));
             RETURN_IF_ERROR(attend(stream, block));
             for (size_t i = 1; i < products_.size(); ++i) {
               RETURN_IF_ERROR(MultiplyInBlock(stream, i, block));
             }
             return absl::OkStatus();
           });
    }
  }

 private:
  static constexpr int64_t kRows = 8;

  struct Product {
    const char* name;
    int64_t inputs, outputs;
    kernels::Activation activation = kernels::Activation::kNone;
    std::unique_ptr<kernels::LinearOp> op = nullptr;
    std::vector<Tensor> w = {};  // one set for each block, so that no cache holds them
    Tensor bias = {};
  };

  int blocks() const { return settings_.sizes.generating_blocks; }
  Tensor Random(const Shape& shape) { return Value(timer_.Random(shape, DType::kBfloat16)); }

  absl::Status Norm(Stream& stream) {
    return norm_->Forward(stream, x_, gamma_, gamma_, addend_, statistics_, narrow_);
  }
  absl::Status Multiply(Stream& stream, size_t i, int block) {
    const Product& product = products_[i];
    return product.op->Forward(stream, InputOf(product), product.w[static_cast<size_t>(block)],
                               product.bias, z_, OutputOf(i), workspace_);
  }

  // Computes the norm before the first product of each half of a block, and the sum after the
  // second, in the product if that can.
  absl::Status MultiplyInBlock(Stream& stream, size_t i, int block) {
    const Product& product = products_[i];
    const bool has_norm = i % 2 == 0;
    if (!product.op->takes_neighbors()) {
      if (has_norm) RETURN_IF_ERROR(Norm(stream));
      return Multiply(stream, i, block);
    }
    kernels::LinearNeighbors neighbors;
    if (has_norm) {
      neighbors.norm = {.gamma = gamma_, .beta = gamma_};
    } else {
      neighbors.addend = addend_;
    }
    return product.op->ForwardWithNeighbors(stream, neighbors, InputOf(product),
                                            product.w[static_cast<size_t>(block)], product.bias, z_,
                                            OutputOf(i), workspace_);
  }
  const Tensor& InputOf(const Product& product) const {
    return product.inputs == width_ ? narrow_ : hidden_;
  }
  const Tensor& OutputOf(size_t i) const { return i == 0 ? qkv_ : i == 2 ? hidden_ : x_; }

  // Measures the time of one block, with all blocks running one after another.
  void Time(const std::string& id, const std::string& name,
            const std::function<absl::Status(Stream&, int)>& issue) {
    const auto recording = Value(timer_.device().CreateRecording());
    const double seconds =
        Value(timer_.Seconds(settings_.sizes.repetitions, [&](Stream& stream, int) {
          return stream.Replay(*recording, [&]() -> absl::Status {
            for (int block = 0; block < blocks(); ++block) RETURN_IF_ERROR(issue(stream, block));
            return absl::OkStatus();
          });
        }));
    Report(settings_, "generate_" + id, absl::StrFormat("generating, %d rows, %s", kRows, name),
           1e6 * seconds / blocks(), "us");
  }

  const Settings& settings_;
  engine::DeviceTimer& timer_;
  const int64_t width_ = settings_.sizes.token_width;
  const int64_t head_size_ = std::min<int64_t>(64, width_);
  std::unique_ptr<kernels::LayerNormOp> norm_;
  std::unique_ptr<kernels::CachedAttentionOp> attention_;
  std::vector<Product> products_;
  std::vector<Tensor> caches_;
  const Tensor x_ = Random({kRows, width_}), addend_ = Random({kRows, width_});
  const Tensor narrow_ = Random({kRows, width_}), gamma_ = Random({width_});
  const Tensor qkv_ = Random({kRows, 3 * width_});
  const Tensor hidden_ = Random({kRows, 4 * width_}), z_ = Random({kRows, 4 * width_});
  Tensor statistics_;
  std::byte* workspace_ = nullptr;
};

// Products of few rows with weights of one extent, which are used in turn so that no cache holds
// them.
class FewRows {
 public:
  FewRows(const Settings& settings, int64_t inputs, int64_t outputs, int64_t weight_bytes,
          engine::DeviceTimer& timer)
      : settings_(settings),
        inputs_(inputs),
        outputs_(outputs),
        weight_bytes_(weight_bytes),
        timer_(timer) {
    constexpr int64_t kTotalBytes = int64_t{256} << 20;
    const int64_t most = settings.sizes.quantized_weights;
    const int64_t count = std::clamp<int64_t>(kTotalBytes / weight_bytes + 1, 2, most);
    for (int64_t i = 0; i < count; ++i) {
      const Tensor words = Value(timer.Random(Shape{weight_bytes / 4}, DType::kFloat32));
      weights_.push_back({words.data, DType::kUint8, Shape{weight_bytes}});
    }
  }

  // `is_cached`: with one weight, which a cache may hold.
  void Time(const std::string& id, const std::string& kind, int64_t rows, const std::string& what,
            kernels::LinearOp& op, bool is_cached = false) {
    const DType type = timer_.device().activation_type();
    const Tensor x = Value(timer_.Random(Shape{rows, inputs_}, type));
    const Tensor y = Value(timer_.Random(Shape{rows, outputs_}, type));
    std::byte* const workspace = Value(timer_.Workspace(op.workspace_bytes()));
    const auto recording = Value(timer_.device().CreateRecording());
    const double seconds =
        Value(timer_.Seconds(settings_.sizes.repetitions,
                             [&](Stream& stream, int) {
                               return stream.Replay(*recording, [&]() -> absl::Status {
                                 for (const Tensor& w : weights_) {
                                   const Tensor& own = is_cached ? weights_.front() : w;
                                   RETURN_IF_ERROR(
                                       op.Forward(stream, x, own, {}, {}, y, workspace));
                                 }
                                 return absl::OkStatus();
                               });
                             })) /
        static_cast<double>(weights_.size());
    const std::string name = absl::StrFormat("%s_%s_%d_%d_%d", id, kind, rows, inputs_, outputs_);
    Report(settings_, name,
           absl::StrFormat("%s, %d rows x (%d, %d), %s", kind, rows, inputs_, outputs_, what),
           1e6 * seconds, "us");
    if (is_cached) return;
    Report(settings_, name + "_rate", "  its stored bytes / time",
           Gigabytes(weight_bytes_, seconds), "GB/s");
  }

 private:
  const Settings& settings_;
  const int64_t inputs_, outputs_, weight_bytes_;
  engine::DeviceTimer& timer_;
  std::vector<Tensor> weights_;
};

constexpr int64_t kFewRows[] = {1, 8, 16};

void BenchQuantizedRows(const Settings& settings, int64_t inputs, int64_t outputs,
                        kernels::Quantization kind, engine::DeviceTimer& timer) {
  kernels::Device& device = timer.device();
  kernels::LinearShape shape = {.inputs = inputs,
                                .outputs = outputs,
                                .has_bias = false,
                                .quantized = {{kind, inputs, outputs}},
                                .forward_only = true};
  const std::string name(QuantizationName(kind));
  FewRows products(settings, inputs, outputs, shape.quantized->bytes(), timer);
  for (const int64_t rows : kFewRows) {
    shape.rows = rows;
    const auto op = Value(device.ops().Create(shape));
    products.Time("quantized", name, rows, "as it is stored", *op);
    // If that is as slow, what bounds it is not the memory.
    products.Time("cached", name, rows, "the same one again", *op, /*is_cached=*/true);
    products.Time("expanded", name, rows, "expanded first",
                  *Value(CreateExpandedLinear(shape, device)));
  }
}

}  // namespace

void BenchGenerate(const Settings& settings) {
  const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
  auto timer = Value(engine::DeviceTimer::Create(*device));
  GeneratingBlocks(settings, timer).Run();
  if (settings.json) return;
  for (const std::string& choice : device->choices()) std::printf("%s\n", choice.c_str());
}

void BenchQuantized(const Settings& settings) {
  for (const auto& [inputs, outputs] : settings.sizes.quantized) {
    for (const kernels::Quantization kind :
         {kernels::Quantization::kNf4, kernels::Quantization::kInt8}) {
      const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
      auto timer = Value(engine::DeviceTimer::Create(*device));
      BenchQuantizedRows(settings, inputs, outputs, kind, timer);
    }
    const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
    auto timer = Value(engine::DeviceTimer::Create(*device));
    FewRows products(settings, inputs, outputs, inputs * outputs * SizeOf(DType::kBfloat16), timer);
    for (const int64_t rows : kFewRows) {
      const kernels::LinearShape shape = {.rows = rows,
                                          .inputs = inputs,
                                          .outputs = outputs,
                                          .has_bias = false,
                                          .forward_only = true};
      products.Time("few_rows", "bf16", rows, "not quantized", *Value(device->ops().Create(shape)));
    }
  }
}

}  // namespace stagecoach::bench
