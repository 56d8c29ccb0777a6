#include "partition/io/transformer_times.h"

#include <algorithm>
#include <cmath>

namespace stagecoach::partition {
namespace {

int64_t Ceiling(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

double Real(int64_t value) { return static_cast<double>(value); }

// F; B, with the gradient of the input; and W.
struct Passes {
  double forward_ns = 0, backward_input_ns = 0, backward_weight_ns = 0;

  void Add(const Passes& more) {
    forward_ns += more.forward_ns;
    backward_input_ns += more.backward_input_ns;
    backward_weight_ns += more.backward_weight_ns;
  }
};

// The times of one transformer at one micro-batch size, on one of the devices that share a layer.
class TransformerTimes {
 public:
  TransformerTimes(const Transformer& transformer, int64_t rows)
      : shape_(transformer),
        tokens_(TokensOfGroup(transformer, rows)),
        pairs_(transformer.experts > 0 ? PairsOfGroup(transformer, rows) : tokens_),
        values_(Real(tokens_) * Real(transformer.hidden)),
        scores_(Real(tokens_) * Real(transformer.sequence) * Real(transformer.heads) *
                (transformer.attention == Attention::kFlash ? transformer.computed_scores : 1)),
        width_(Real(transformer.bytes_per_value)),
        share_(1.0 / Real(transformer.tensor_parallel)) {}

  // Returns the times of products of (rows, inner) by (inner, columns), on one device.
  Passes Linear(int64_t rows, int64_t inner, int64_t columns, int64_t products = 1) const {
    return {ProductNs(rows, inner, columns, products), ProductNs(rows, columns, inner, products),
            ProductNs(inner, rows, columns, products)};
  }
  // Returns the part of a width that each device has.
  int64_t Part(int64_t width) const { return Ceiling(width, shape_.tensor_parallel); }

  Passes Perceptron() const {
    const int64_t h = shape_.hidden, inputs = Part(shape_.mlp_inputs() * shape_.mlp_width());
    const int64_t width = Part(shape_.mlp_width());
    if (shape_.experts == 0) {
      Passes passes = Linear(tokens_, h, inputs);
      passes.Add(Linear(tokens_, width, h));
      return passes;
    }
    const int64_t experts = shape_.experts / shape_.expert_parallel;
    const int64_t of_each = Ceiling(pairs_, experts);
    Passes passes = Linear(tokens_, h, shape_.experts);  // the router
    passes.Add(Linear(of_each, h, inputs, experts));
    passes.Add(Linear(of_each, width, h, experts));
    return passes;
  }
  // Returns the time of the products of attention in F: scores, and their products with the values.
  // `seen`: ShareSeen.
  double AttentionNs(double seen = 1.0) const {
    const double flops = 4 * scores_ * seen * Real(shape_.size_of_head());
    return flops * share_ / (shape_.device_teraflops * 1e3);
  }

  // These return the times of what is bound by memory in a layer.
  double ScoresForwardNs() const {
    if (shape_.attention == Attention::kFlash) return 0;
    return SharedNs(scores_, 4 * width_ + (shape_.dropout ? 2 * width_ + 1 : 0));
  }
  double ScoresBackwardNs() const {
    if (shape_.attention == Attention::kFlash) return 0;
    return SharedNs(scores_, 7 * width_ + (shape_.dropout ? 2 * width_ + 1 : 0));
  }
  double NormsForwardNs() const { return WholeNs(values_, 4 * width_); }
  double ActivationForwardNs() const {
    return SharedNs(Real(pairs_) * Real(shape_.mlp_width()),
                    Real(shape_.mlp_inputs() + 1) * width_);
  }
  double OthersForwardNs() const {
    return NormsForwardNs() + WholeNs(values_, 6 * width_ + (shape_.dropout ? 2 : 0)) +
           ActivationForwardNs() + PostNormsNs(4) + HeadNormsNs(2) + RotationNs() + DispatchNs(3);
  }
  double OthersBackwardNs() const {
    return WholeNs(values_, 12 * width_ + (shape_.dropout ? 4 * width_ + 2 : 0)) +
           SharedNs(Real(pairs_) * Real(shape_.mlp_width()),
                    Real(2 * shape_.mlp_inputs() + 1) * width_) +
           PostNormsNs(6) + HeadNormsNs(3) + RotationNs() + DispatchNs(4);
  }

  // Return the times for `bytes` bytes per value, of which each device has its share, or the share
  // that norms have.
  double SharedNs(double values, double bytes) const { return MemoryNs(values * bytes * share_); }
  double WholeNs(double values, double bytes) const {
    return MemoryNs(values * bytes * (shape_.sequence_parallel ? share_ : 1.0));
  }

  // Returns the time of messages of that many tokens among the devices that share a layer.
  double GatherNs(int64_t tokens) const {
    const int64_t t = shape_.tensor_parallel;
    const int64_t bytes = tokens * shape_.hidden * shape_.bytes_per_value;
    return t == 1 ? 0.0 : Real(shape_.tensor_link.TransferNs(Ceiling(bytes * (t - 1), t)));
  }
  double AllReduceNs(int64_t tokens) const { return 2.0 * GatherNs(tokens); }
  // Returns the time of what W gathers again, since devices keep a part of it.
  double GatherAgainNs(int64_t tokens) const {
    return shape_.sequence_parallel ? GatherNs(tokens) : 0;
  }
  // Returns the time of sending tokens to their experts, or back.
  double AllToAllNs() const {
    const int64_t e = shape_.expert_parallel;
    const int64_t bytes = Ceiling(pairs_ * shape_.hidden * shape_.bytes_per_value,
                                  shape_.sequence_parallel ? shape_.tensor_parallel : 1);
    return e == 1 ? 0.0 : Real(shape_.expert_link.TransferNs(Ceiling(bytes * (e - 1), e)));
  }
  // Returns the part of the messages that products do not hide.
  double ExposedNs(double messages_ns, double products_ns) const {
    return messages_ns - std::min(shape_.tensor_overlap * messages_ns, products_ns);
  }

  // Returns the time of the optimizer, and of summing the gradients of `parameters`, which all
  // groups have.
  double StepNs(const LayerCost& layer, int64_t parameters) const {
    const int64_t e = shape_.expert_parallel;
    const int64_t bytes = Ceiling(parameters, shape_.tensor_parallel) * shape_.bytes_per_value;
    const double sum_ns =
        e == 1 ? 0.0 : 2.0 * Real(shape_.expert_link.TransferNs(Ceiling(bytes * (e - 1), e)));
    return sum_ns +
           MemoryNs(2.0 * Real(layer.memory.optimizer_bytes + layer.memory.parameter_bytes));
  }

  int64_t tokens() const { return tokens_; }
  int64_t pairs() const { return pairs_; }
  double values() const { return values_; }
  double width() const { return width_; }

 private:
  double ProductNs(int64_t rows, int64_t inner, int64_t columns, int64_t products) const {
    const double flops = 2.0 * Real(products) * Real(rows) * Real(inner) * Real(columns);
    return flops / (shape_.device_teraflops * 1e3) /
           ShareFilled(rows, columns, shape_.device_multiprocessors, products);
  }
  double MemoryNs(double bytes) const {
    const double rate = shape_.memory_gigabytes_per_second;
    return rate > 0 ? bytes / rate : 0;
  }
  // Returns the time of reading or writing what norms behind others read and write, that many
  // times.
  double PostNormsNs(double times) const {
    return shape_.post_norms ? WholeNs(values_, times * width_) : 0;
  }
  // Returns the time of reading or writing normalized queries and keys that many times.
  double HeadNormsNs(double times) const {
    if (!shape_.qk_norm) return 0;
    return SharedNs(Real(tokens_) * Real(shape_.query_width() + shape_.key_width()),
                    times * width_);
  }
  double RotationNs() const {
    if (shape_.positions != Positions::kRotary) return 0;
    return SharedNs(Real(tokens_) * Real(shape_.query_width() + shape_.key_width()), 2 * width_);
  }
  // Returns the time of sorting the tokens, each counted once per expert, and of summing the
  // results of the experts.
  double DispatchNs(double times) const {
    if (shape_.experts == 0) return 0;
    return WholeNs(Real(pairs_) * Real(shape_.hidden), times * width_) + WholeNs(values_, width_);
  }

  const Transformer& shape_;
  int64_t tokens_;
  int64_t pairs_;  // for the perceptron
  double values_, scores_, width_;
  double share_;  // of what is shared, the part on one device
};

void Set(const Passes& passes, LayerCost& layer) {
  layer.forward_ns = passes.forward_ns;
  layer.backward_input_ns = passes.backward_input_ns;
  layer.backward_weight_ns = passes.backward_weight_ns;
}

double TokensOf(const Transformer& t, int64_t rows) { return Real(t.sequence) * Real(rows); }

double AttentionFlops(const Transformer& t, int64_t rows, double seen = 1.0) {
  return 4 * TokensOf(t, rows) * Real(t.sequence) * Real(t.query_width()) * seen;
}

// Returns the share of the pairs of a position and one up to it that the layer's attention
// computes.
double ShareSeen(const Transformer& t, int64_t layer) {
  if (t.attention != Attention::kFlash || !t.has_window(layer)) return 1.0;
  const double s = Real(t.sequence), w = std::min(s, Real(t.window));
  return (w * (w + 1) / 2 + (s - w) * w) / (s * (s + 1) / 2);
}

}  // namespace

int64_t TokensOfGroup(const Transformer& t, int64_t rows) {
  return Ceiling(rows, t.expert_parallel) * t.sequence;
}

int64_t PairsOfGroup(const Transformer& t, int64_t rows) {
  return static_cast<int64_t>(
      std::ceil(Real(TokensOfGroup(t, rows) * t.experts_per_token) * t.capacity_factor));
}

double ShareFilled(int64_t rows, int64_t columns, int64_t multiprocessors, int64_t products) {
  if (multiprocessors == 0) return 1.0;
  const int64_t tiles = products * Ceiling(rows, kTileRows) * Ceiling(columns, kTileColumns);
  const int64_t slots = Ceiling(tiles, multiprocessors) * multiprocessors;
  return Real(products) * Real(rows) * Real(columns) / (Real(slots) * kTileRows * kTileColumns);
}

void SetEmbeddingTimes(const Transformer& t, int64_t rows, LayerCost& layer) {
  const TransformerTimes times(t, rows);
  const double w = times.width();
  const double tables = t.positions == Positions::kLearned ? 2 : 1;
  const double bytes = (tables + 1) * w + (t.dropout ? 1 : 0);
  layer.forward_ns = times.WholeNs(times.values(), bytes) + times.AllReduceNs(times.tokens());
  layer.backward_weight_ns = times.WholeNs(times.values(), 3 * w);
  layer.step_ns = times.StepNs(layer, ParametersOfEmbedding(t));
}

void SetLayerTimes(const Transformer& t, int64_t rows, int64_t index, LayerCost& layer) {
  const TransformerTimes times(t, rows);
  const double seen = ShareSeen(t, index);
  Passes passes = times.Linear(times.tokens(), t.hidden, times.Part(t.qkv_width()));
  passes.Add(times.Linear(times.tokens(), times.Part(t.query_width()), t.hidden));
  passes.Add(times.Perceptron());

  const double sums_ns = times.AllReduceNs(times.tokens()) + times.AllReduceNs(times.pairs());
  const double gathers_ns =
      times.GatherAgainNs(times.tokens()) + times.GatherAgainNs(times.pairs());
  const double attention_ns = times.AttentionNs(seen) + times.ScoresForwardNs();
  passes.forward_ns += times.ExposedNs(sums_ns, passes.forward_ns) + attention_ns +
                       times.OthersForwardNs() + 2 * times.AllToAllNs();
  passes.backward_input_ns += times.ExposedNs(sums_ns, passes.backward_input_ns) +
                              2 * times.AttentionNs(seen) + times.ScoresBackwardNs() +
                              times.OthersBackwardNs() + 2 * times.AllToAllNs();
  if (t.attention != Attention::kStored) passes.backward_input_ns += attention_ns;
  passes.backward_weight_ns += times.ExposedNs(gathers_ns, passes.backward_weight_ns);
  Set(passes, layer);
  layer.step_ns = times.StepNs(layer, ParametersOfLayer(t).others);

  const double experts = Real(t.experts > 0 ? t.experts_per_token : 1);
  const double linear = Real(t.qkv_width()) + Real(t.query_width()) + Real(t.experts) +
                        experts * Real(t.mlp_inputs() + 1) * Real(t.mlp_width());
  layer.flops =
      3 * (2 * TokensOf(t, rows) * Real(t.hidden) * linear + AttentionFlops(t, rows, seen));
}

RepeatedPart RepeatedTimes(const Transformer& t, int64_t rows) {
  const TransformerTimes times(t, rows);
  RepeatedPart part;
  if (t.repeated.scores && t.attention == Attention::kStored) {
    part.forward_ns += times.AttentionNs() + times.ScoresForwardNs();
    part.flops += AttentionFlops(t, rows);
  }
  if (t.repeated.norms) part.forward_ns += times.NormsForwardNs();
  if (t.repeated.activation) part.forward_ns += times.ActivationForwardNs();
  return part;
}

void SetHeadTimes(const Transformer& t, int64_t rows, LayerCost& layer) {
  const TransformerTimes times(t, rows);
  const double w = times.width();
  const double logits = Real(times.tokens()) * Real(t.vocabulary);
  Passes passes = times.Linear(times.tokens(), t.hidden, times.Part(t.vocabulary));
  passes.backward_input_ns +=
      times.ExposedNs(times.AllReduceNs(times.tokens()), passes.backward_input_ns) +
      times.SharedNs(logits, w + 4);
  passes.backward_weight_ns +=
      times.ExposedNs(times.GatherAgainNs(times.tokens()), passes.backward_weight_ns);
  passes.forward_ns += times.SharedNs(logits, 2 * w + 4);
  Set(passes, layer);
  layer.step_ns = times.StepNs(layer, ParametersOfNorm(t) + t.vocabulary * t.hidden);
  layer.flops = 6 * TokensOf(t, rows) * Real(t.hidden) * Real(t.vocabulary);
}

}  // namespace stagecoach::partition
