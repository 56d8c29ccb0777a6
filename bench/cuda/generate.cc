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
      return Value(ops.Create(kernels::LinearShape{kRows, inputs, outputs, activation}));
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
             RETURN_IF_ERROR(Norm(stream));
             RETURN_IF_ERROR(Multiply(stream, 0, block));
             RETURN_IF_ERROR(attend(stream, block));
             RETURN_IF_ERROR(Multiply(stream, 1, block));
             RETURN_IF_ERROR(Norm(stream));
             RETURN_IF_ERROR(Multiply(stream, 2, block));
             return Multiply(stream, 3, block);
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
    return product.op->Forward(stream, product.inputs == width_ ? narrow_ : hidden_,
                               product.w[static_cast<size_t>(block)], product.bias, z_,
                               i == 0   ? qkv_
                               : i == 2 ? hidden_
                                        : x_,
                               workspace_);
  }

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

void BenchQuantizedRows(const Settings& settings, const kernels::LinearShape& shape,
                        engine::DeviceTimer& timer) {
  constexpr int kWeights = 8;  // used in turn, so that no cache holds them
  kernels::Device& device = timer.device();
  const DType type = device.activation_type();
  const Tensor x = Value(timer.Random(Shape{shape.rows, shape.inputs}, type));
  const Tensor y = Value(timer.Random(Shape{shape.rows, shape.outputs}, type));
  const int64_t bytes = shape.quantized->bytes();
  std::vector<Tensor> weights;
  for (int i = 0; i < kWeights; ++i) {
    const Tensor words = Value(timer.Random(Shape{bytes / 4}, DType::kFloat32));
    weights.push_back({words.data, DType::kUint8, Shape{bytes}});
  }
  const auto report = [&](const char* id, const char* what, kernels::LinearOp& op) {
    std::byte* const workspace = Value(timer.Workspace(op.workspace_bytes()));
    const auto recording = Value(device.CreateRecording());
    const double seconds =
        Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int) {
          return stream.Replay(*recording, [&]() -> absl::Status {
            for (const Tensor& w : weights) {
              RETURN_IF_ERROR(op.Forward(stream, x, w, {}, {}, y, workspace));
            }
            return absl::OkStatus();
          });
        }));
    const char* const kind = QuantizationName(shape.quantized->kind);
    const std::string name =
        absl::StrFormat("%s_%s_%d_%d_%d", id, kind, shape.rows, shape.inputs, shape.outputs);
    Report(settings, name,
           absl::StrFormat("%s, %d rows x (%d, %d), %s", kind, shape.rows, shape.inputs,
                           shape.outputs, what),
           1e6 * seconds / kWeights, "us");
    Report(settings, name + "_rate", "  its stored bytes / time",
           Gigabytes(kWeights * bytes, seconds), "GB/s");
  };
  report("quantized", "as it is stored", *Value(device.ops().Create(shape)));
  report("expanded", "expanded first", *Value(CreateExpandedLinear(shape, device)));
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
      for (const int64_t rows : {1, 8, 16}) {
        const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
        auto timer = Value(engine::DeviceTimer::Create(*device));
        BenchQuantizedRows(settings,
                           {.rows = rows,
                            .inputs = inputs,
                            .outputs = outputs,
                            .has_bias = false,
                            .quantized = {{kind, inputs, outputs}},
                            .forward_only = true},
                           timer);
      }
    }
  }
}

}  // namespace stagecoach::bench
