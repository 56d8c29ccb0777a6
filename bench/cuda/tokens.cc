// Both ends of a language model.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "bench/cuda/cuda_bench.h"
#include "kernels/ops/cached_attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/head.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/ops.h"

namespace stagecoach::bench {
namespace {

// Returns ids of which a few are frequent, as words are: their logarithms are uniform.
Tensor Words(engine::DeviceTimer& timer, int64_t count, int64_t vocabulary) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const double uniform = static_cast<double>(i * 7919 % count) / static_cast<double>(count);
    ids[static_cast<size_t>(i)] =
        static_cast<int32_t>(std::floor(std::pow(static_cast<double>(vocabulary), uniform)) - 1.0);
  }
  return {Upload(timer, ids.data(), count), DType::kInt32, Shape{count}};
}

void BenchHead(const Settings& settings, int64_t rows, int64_t classes) {
  const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
  auto timer = Value(engine::DeviceTimer::Create(*device));
  const int64_t features = settings.sizes.token_width;
  const kernels::HeadShape shape{.rows = rows, .features = features, .classes = classes};
  const auto op = Value(device->ops().Create(shape));
  const DType type = device->activation_type();
  const Tensor x = Value(timer.Random(Shape{rows, features}, type));
  const Tensor dx = Value(timer.Random(Shape{rows, features}, type));
  const Tensor w = Value(timer.Random(Shape{classes, features}, type));
  const Tensor dw = Value(timer.Random(Shape{classes, features}, DType::kFloat32));
  const Tensor labels = Words(timer, rows, classes);
  const Tensor result = {Value(timer.Workspace(16)), DType::kFloat64, Shape{2}};
  const kernels::LossTerms host_terms = {.valid_samples = rows, .scale = 1e-3F};
  const kernels::LossTerms* const terms = Upload(timer, &host_terms, 1);
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  const int runs = settings.sizes.repetitions;
  const double forward = Value(timer.Seconds(runs, [&](Stream& stream, int) {
    return op->Forward(stream, x, w, labels, terms, {}, result, workspace);
  }));
  const double backward = Value(timer.Seconds(runs, [&](Stream& stream, int) {
    return op->Backward(stream, x, w, labels, terms, result, dx, dw, true, workspace);
  }));
  const double flops = 2.0 * static_cast<double>(rows * features * classes);
  const auto report = [&](const char* id, const char* what, double seconds, int products) {
    const std::string name =
        absl::StrFormat("head, (%d, %d) x (%d, %d), %s", rows, features, features, classes, what);
    const std::string full_id = absl::StrFormat("head_%s_%d_%d", id, rows, classes);
    Report(settings, full_id, name, seconds * 1e3, "ms");
    Report(settings, full_id + "_rate", absl::StrCat("  its products / time"),
           products * flops / seconds / 1e12, "TFLOP/s");
  };
  report("forward", "logits and loss", forward, 1);
  report("backward", "logits, loss and gradients", backward, 3);
}

void BenchEmbedding(const Settings& settings, engine::DeviceTimer& timer) {
  const Sizes& sizes = settings.sizes;
  const int64_t vocabulary = sizes.vocabularies.front();
  kernels::Device& device = timer.device();
  const kernels::EmbeddingShape shape{
      .rows = sizes.embedding_rows, .vocabulary = vocabulary, .features = sizes.token_width};
  const auto op = Value(device.ops().Create(shape));
  const Tensor ids = Words(timer, shape.rows, vocabulary);
  const Tensor dy =
      Value(timer.Random(Shape{shape.rows, shape.features}, device.activation_type()));
  const Tensor dtokens = Value(timer.Random(Shape{vocabulary, shape.features}, DType::kFloat32));
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  Report(settings, "embedding_gradient",
         absl::StrFormat("gradient of an embedding, %d ids", shape.rows),
         1e3 * Value(timer.Seconds(sizes.repetitions,
                                   [&](Stream& stream, int) {
                                     return op->BackwardWeight(stream, ids, dy, dtokens, {}, true,
                                                               workspace);
                                   })),
         "ms");
}

// Measures the last position of a long sequence, whose cache is read once: several in turn, because
// a GPU has a cache of its own.
void BenchCachedAttention(const Settings& settings, double copy_rate, engine::DeviceTimer& timer) {
  constexpr int kCaches = 4;
  const int64_t positions = settings.sizes.positions;
  kernels::Device& device = timer.device();
  const DType type = device.activation_type();
  const auto op =
      Value(device.ops().Create(kernels::CachedAttentionShape{.positions = positions,
                                                              .heads = 32,
                                                              .kv_heads = 8,
                                                              .head_size = 128,
                                                              .rotary_base = 10000.0F}));
  std::vector<Tensor> caches;
  for (int i = 0; i < kCaches; ++i) {
    caches.push_back(Value(timer.Random(Shape{op->cache_bytes() / SizeOf(type)}, type)));
  }
  const Tensor qkv = Value(timer.Random(Shape{1, (32 + 2 * 8) * 128}, type));
  const Tensor y = Value(timer.Random(Shape{1, 32 * 128}, type));
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  const kernels::CachedRow host_last{.position = positions - 1};
  const kernels::CachedRow* const last = Upload(timer, &host_last, 1);
  const double seconds =
      Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int turn) {
        std::byte* const cache =
            static_cast<std::byte*>(caches[static_cast<size_t>(turn % kCaches)].data);
        return op->Forward(stream, last, qkv, cache, y, workspace);
      }));
  ReportMoved(
      settings, copy_rate,
      {"cached_attention", "attention of one position, its cache", op->cache_bytes(), seconds});
}

}  // namespace

void BenchCrossEntropy(const Settings& settings, double copy_rate, engine::DeviceTimer& timer,
                       int64_t classes) {
  const int64_t rows = settings.sizes.head_rows.front();
  kernels::Device& device = timer.device();
  const auto op = Value(device.ops().Create(kernels::SoftmaxCrossEntropyShape{{rows, classes}}));
  const Tensor logits = Value(timer.Random(Shape{rows, classes}, device.activation_type()));
  const Tensor labels = Words(timer, rows, classes);
  const Tensor result = {Value(timer.Workspace(16)), DType::kFloat64, Shape{2}};
  const kernels::LossTerms host_terms = {.valid_samples = rows, .scale = 1e-3F};
  const kernels::LossTerms* const terms = Upload(timer, &host_terms, 1);
  std::byte* const workspace = Value(timer.Workspace(op->workspace_bytes()));
  ReportMoved(settings, copy_rate,
              {absl::StrFormat("cross_entropy_%d_%d", rows, classes),
               absl::StrFormat("softmax, loss and gradient in place, %d x %d", rows, classes),
               2 * logits.bytes(),
               Value(timer.Seconds(settings.sizes.repetitions, [&](Stream& stream, int) {
                 return op->Compute(stream, logits, labels, terms, logits, result, workspace);
               }))});
}

void BenchTokens(const Settings& settings) {
  for (const int64_t rows : settings.sizes.head_rows) {
    for (const int64_t classes : settings.sizes.vocabularies) BenchHead(settings, rows, classes);
  }
  const auto device = Value(engine::MakeDevice(OnGpu(settings, Precision::kBfloat16), 0));
  auto timer = Value(engine::DeviceTimer::Create(*device));
  const double copy_rate = BenchCopy(settings, timer);
  BenchCrossEntropy(settings, copy_rate, timer, settings.sizes.vocabularies.back());
  BenchEmbedding(settings, timer);
  BenchCachedAttention(settings, copy_rate, timer);
}

}  // namespace stagecoach::bench
