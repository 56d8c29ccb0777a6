#include "partition/files/transformer_times.h"

namespace stagecoach::partition {
namespace {

int64_t Ceiling(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// A product of (rows, inner) by (inner, columns) on one device.
struct Product {
  int64_t rows, inner, columns;
};

// Of one transformer at one micro-batch size.
class Times {
 public:
  Times(const Transformer& transformer, int64_t rows)
      : shape_(transformer),
        tokens_(rows * transformer.sequence),
        values_(static_cast<double>(tokens_) * static_cast<double>(transformer.hidden)),
        scores_(static_cast<double>(tokens_) * static_cast<double>(transformer.sequence) *
                static_cast<double>(transformer.heads)),
        width_(static_cast<double>(transformer.bytes_per_value)),
        share_(1.0 / static_cast<double>(transformer.tensor_parallel)) {}

  // Of a product of (s b, inner) by (inner, columns): F; B, with the gradient of the columns; and
  // W.
  struct Passes {
    double forward_ns = 0, backward_input_ns = 0, backward_weight_ns = 0;

    void Add(const Passes& more) {
      forward_ns += more.forward_ns;
      backward_input_ns += more.backward_input_ns;
      backward_weight_ns += more.backward_weight_ns;
    }
  };
  Passes Linear(int64_t inner, int64_t columns) const {
    return {ProductNs({tokens_, inner, columns}), ProductNs({tokens_, columns, inner}),
            ProductNs({inner, tokens_, columns})};
  }
  // The part of a width that each device has.
  int64_t Part(int64_t width) const { return Ceiling(width, shape_.tensor_parallel); }

  double FlopsNs(double flops) const { return flops * share_ / (shape_.device_teraflops * 1e3); }
  // Of so many bytes per value, of which each device has its share, or of which the norms have.
  double SharedNs(double values, double bytes) const { return MemoryNs(values * bytes * share_); }
  double WholeNs(double values, double bytes) const {
    return MemoryNs(values * bytes * (shape_.sequence_parallel ? share_ : 1.0));
  }
  double MemoryNs(double bytes) const {
    const double rate = shape_.memory_gigabytes_per_second;
    return rate > 0 ? bytes / rate : 0;
  }
  double AllReduceNs() const {
    const int64_t t = shape_.tensor_parallel;
    const int64_t bytes = tokens_ * shape_.hidden * shape_.bytes_per_value;
    return t == 1 ? 0.0
                  : 2.0 * static_cast<double>(
                              shape_.tensor_link.TransferNs(Ceiling(bytes * (t - 1), t)));
  }
  double UpdateNs(const LayerCost& layer) const {
    return MemoryNs(
        2.0 * static_cast<double>(layer.memory.optimizer_bytes + layer.memory.parameter_bytes));
  }

  int64_t tokens() const { return tokens_; }
  double values() const { return values_; }
  double scores() const { return scores_; }
  double width() const { return width_; }

 private:
  double ProductNs(const Product& product) const {
    const double flops = 2.0 * static_cast<double>(product.rows) *
                         static_cast<double>(product.inner) * static_cast<double>(product.columns);
    return flops / (shape_.device_teraflops * 1e3) /
           ShareFilled(product.rows, product.columns, shape_.device_multiprocessors);
  }

  const Transformer& shape_;
  int64_t tokens_;
  double values_, scores_, width_;
  double share_;  // that one device has of what is shared
};

void Set(const Times::Passes& passes, LayerCost& layer) {
  layer.forward_ns = passes.forward_ns;
  layer.backward_input_ns = passes.backward_input_ns;
  layer.backward_weight_ns = passes.backward_weight_ns;
}

}  // namespace

double ShareFilled(int64_t rows, int64_t columns, int64_t multiprocessors) {
  if (multiprocessors == 0) return 1.0;
  const int64_t tiles = Ceiling(rows, kTileRows) * Ceiling(columns, kTileColumns);
  const int64_t slots = Ceiling(tiles, multiprocessors) * multiprocessors;
  return static_cast<double>(rows) * static_cast<double>(columns) /
         (static_cast<double>(slots) * kTileRows * kTileColumns);
}

void SetEmbeddingTimes(const Transformer& t, int64_t rows, LayerCost& layer) {
  const Times times(t, rows);
  layer.forward_ns = times.WholeNs(times.values(), 3 * times.width() + 1) + times.AllReduceNs();
  layer.backward_weight_ns = times.WholeNs(times.values(), 3 * times.width());
  layer.step_ns = times.UpdateNs(layer);
}

void SetLayerTimes(const Transformer& t, int64_t rows, LayerCost& layer) {
  const Times times(t, rows);
  const double w = times.width();
  Times::Passes passes = times.Linear(t.hidden, times.Part(3 * t.hidden));  // query, key, value
  passes.Add(times.Linear(times.Part(t.hidden), t.hidden));
  passes.Add(times.Linear(t.hidden, times.Part(4 * t.hidden)));
  passes.Add(times.Linear(times.Part(4 * t.hidden), t.hidden));

  const double attention = 4 * times.values() * static_cast<double>(t.sequence);  // flops
  const double score_bytes = t.attention == Attention::kFlash ? 0 : 6 * w + 1;
  const double attention_ns =
      times.FlopsNs(attention) + times.SharedNs(times.scores(), score_bytes);
  passes.forward_ns += attention_ns + times.WholeNs(times.values(), 10 * w + 2) +
                       times.SharedNs(times.values(), 8 * w) + 2 * times.AllReduceNs();
  passes.backward_input_ns += 2 * times.FlopsNs(attention) +
                              times.WholeNs(times.values(), 16 * w + 2) +
                              times.SharedNs(times.values(), 12 * w) + 2 * times.AllReduceNs();
  if (t.attention != Attention::kFlash) {
    passes.backward_input_ns += times.SharedNs(times.scores(), 9 * w + 1);
  }
  if (t.attention != Attention::kStored) passes.backward_input_ns += attention_ns;
  Set(passes, layer);
  layer.step_ns = times.UpdateNs(layer);
  const double linear = 24 * times.values() * static_cast<double>(t.hidden);
  layer.flops = 3 * (linear + attention);
}

void SetHeadTimes(const Transformer& t, int64_t rows, LayerCost& layer) {
  const Times times(t, rows);
  const double w = times.width();
  const double logits = static_cast<double>(times.tokens()) * static_cast<double>(t.vocabulary);
  Times::Passes passes = times.Linear(t.hidden, times.Part(t.vocabulary));
  passes.forward_ns += times.SharedNs(logits, 2 * w + 4);
  passes.backward_input_ns += times.SharedNs(logits, w + 4) + times.AllReduceNs();
  Set(passes, layer);
  layer.step_ns = times.UpdateNs(layer);
  layer.flops = 6 * times.values() * static_cast<double>(t.vocabulary);
}

}  // namespace stagecoach::partition
