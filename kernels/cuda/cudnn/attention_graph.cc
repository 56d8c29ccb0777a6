#include "kernels/cuda/cudnn/attention_graph.h"

namespace stagecoach::kernels::cudnn {
namespace {

constexpr auto kBfloat16 = DataType::kBfloat16, kFloat = DataType::kFloat;

// The building blocks of both graphs.
class AttentionBuilder : public GraphBuilder {
 public:
  AttentionBuilder(const Api& api, const AttentionExtents& extents)
      : GraphBuilder(api),
        B(extents.samples),
        T(extents.positions),
        H(extents.heads),
        G(extents.kv_heads),
        D(extents.head_size),
        query_stride_(extents.query_stride),
        value_stride_(extents.value_stride),
        output_stride_(extents.output_stride) {}

  Descriptor Queries() { return Heads(kQueries, H, query_stride_); }
  Descriptor TransposedKeys() { return Transposed(kKeys, query_stride_); }
  Descriptor Values() { return Heads(kValues, G, value_stride_); }
  Descriptor TransposedValues() { return Transposed(kValues, value_stride_); }
  Descriptor Outputs(int64_t id) { return Heads(id, H, output_stride_); }
  // Adds an operand for a number of heads of queries, or of keys.
  Descriptor Gradients(int64_t id, int64_t heads) { return Heads(id, heads, value_stride_); }
  Descriptor Rows(int64_t id) { return Operand(id, kFloat, {B, H, T, 1}, {H * T, T, 1, 1}); }

  // Adds (B, H, T, T): a row for each query.
  Descriptor Scores(DataType type = kFloat) { return Virtual(type, {B, H, T, T}, ByQueries()); }
  // Adds the transpose, with a row for each key: a column of `scores`.
  Descriptor ByKeys(Descriptor scores) {
    const Descriptor by_keys = Virtual(kBfloat16, {B, H, T, T}, {H * T * T, T * T, 1, T});
    Reshape(scores, by_keys);
    return by_keys;
  }
  Descriptor Keys(Descriptor transposed) {
    const Descriptor keys = Virtual(kFloat, {B, G, T, D}, Strides(query_stride_));
    Reshape(transposed, keys);
    return keys;
  }
  Descriptor VirtualRows() { return Virtual(kFloat, {B, H, T, 1}, {H * T, T, 1, 1}); }
  Descriptor VirtualOutputs(DataType type, bool heads_first) {
    return Virtual(
        type, {B, H, T, D},
        heads_first ? Dimensions{H * T * D, T * D, D, 1} : Dimensions{H * D * T, D * T, H * D, 1});
  }

  // Sets scores that a query does not see to minus infinity.
  Descriptor Masked(Descriptor scores, Descriptor minus_infinity) {
    const Descriptor rows = Scores(DataType::kInt32), columns = Scores(DataType::kInt32);
    const Descriptor sees = Scores(DataType::kBoolean), masked = Scores();
    Index(2, scores, rows);
    Index(3, scores, columns);
    GreaterOrEqual(rows, columns, sees);
    Pointwise(PointwiseMode::kBinarySelect, scores, minus_infinity, masked, sees);
    return masked;
  }
  Descriptor Of(PointwiseMode mode, Descriptor x, Descriptor b = nullptr) {
    const Descriptor y = Scores();
    Pointwise(mode, x, b, y);
    return y;
  }
  Descriptor Product(Descriptor a, Descriptor b) {
    const Descriptor c = Scores();
    Matmul(a, b, c);
    return c;
  }
  // Computes the gradient of keys or values: first for each head of queries, if several share them.
  void GradientOfShared(Descriptor by_keys, Descriptor x, Descriptor gradient) {
    if (H == G) return Matmul(by_keys, x, gradient);
    const Descriptor of_heads = VirtualOutputs(kBfloat16, /*heads_first=*/true);
    Matmul(by_keys, x, of_heads);
    Reduce(ReduceOperator::kAdd, of_heads, gradient);
  }

  const int64_t B, T, H, G, D;

 private:
  Dimensions Strides(int64_t stride) const { return {T * stride, D, stride, 1}; }
  Dimensions ByQueries() const { return {H * T * T, T * T, T, 1}; }
  Descriptor Heads(int64_t id, int64_t heads, int64_t stride) {
    return Operand(id, kBfloat16, {B, heads, T, D}, Strides(stride));
  }
  Descriptor Transposed(int64_t id, int64_t stride) {
    return Operand(id, kBfloat16, {B, G, D, T}, {T * stride, D, 1, stride});
  }

  const int64_t query_stride_, value_stride_, output_stride_;
};

}  // namespace

absl::StatusOr<Graph> AttentionForwardGraph(const GpuHandle& handle,
                                            const AttentionExtents& extents) {
  AttentionBuilder g(handle.api(), extents);
  const Descriptor q = g.Queries(), kt = g.TransposedKeys(), v = g.Values();
  const Descriptor y = g.Outputs(kOutputs), statistics = g.Rows(kStatistics);
  const Descriptor scale = g.Scalar(kScale), minus_infinity = g.Scalar(kMinusInfinity);
  const Descriptor scaled = g.Of(PointwiseMode::kMul, g.Product(q, kt), scale);
  const Descriptor masked = g.Masked(scaled, minus_infinity);
  const Descriptor largest = g.VirtualRows(), sum = g.VirtualRows(), log = g.VirtualRows();
  const Descriptor weights = g.Scores(kBfloat16);
  g.Reduce(ReduceOperator::kMax, masked, largest);
  const Descriptor less = g.Of(PointwiseMode::kSub, masked, largest);
  const Descriptor exponentials = g.Of(PointwiseMode::kExp, less);
  g.Reduce(ReduceOperator::kAdd, exponentials, sum);
  g.Pointwise(PointwiseMode::kLog, sum, nullptr, log);
  g.Pointwise(PointwiseMode::kAdd, largest, log, statistics);
  g.Pointwise(PointwiseMode::kDiv, exponentials, sum, weights);
  g.Matmul(weights, v, y);
  return g.Finish(handle);
}

absl::StatusOr<Graph> AttentionBackwardGraph(const GpuHandle& handle,
                                             const AttentionExtents& extents) {
  AttentionBuilder g(handle.api(), extents);
  const Descriptor q = g.Queries(), kt = g.TransposedKeys(), vt = g.TransposedValues();
  const Descriptor y = g.Outputs(kOutputs), dy = g.Outputs(kOutputGradients);
  const Descriptor statistics = g.Rows(kStatistics), row_sums = g.Rows(kRowSums);
  const Descriptor dq = g.Gradients(kQueryGradients, g.H), dk = g.Gradients(kKeyGradients, g.G);
  const Descriptor dv = g.Gradients(kValueGradients, g.G);
  const Descriptor scale = g.Scalar(kScale), one = g.Scalar(kOne);
  const Descriptor minus_infinity = g.Scalar(kMinusInfinity);

  const Descriptor products = g.VirtualOutputs(kFloat, /*heads_first=*/false);
  const Descriptor sums = g.VirtualRows();
  g.Pointwise(PointwiseMode::kMul, dy, y, products);
  g.Reduce(ReduceOperator::kAdd, products, sums);
  g.Pointwise(PointwiseMode::kMul, sums, one, row_sums);

  const Descriptor scaled = g.Of(PointwiseMode::kMul, g.Product(q, kt), scale);
  const Descriptor less = g.Of(PointwiseMode::kSub, scaled, statistics);
  const Descriptor weights = g.Of(PointwiseMode::kExp, g.Masked(less, minus_infinity));
  g.GradientOfShared(g.ByKeys(weights), dy, dv);

  const Descriptor centered = g.Of(PointwiseMode::kSub, g.Product(dy, vt), row_sums);
  const Descriptor gradients = g.Of(PointwiseMode::kMul, centered, weights);
  const Descriptor scaled_gradients = g.Of(PointwiseMode::kMul, gradients, scale);
  g.GradientOfShared(g.ByKeys(scaled_gradients), q, dk);
  g.Matmul(scaled_gradients, g.Keys(kt), dq);
  return g.Finish(handle);
}

}  // namespace stagecoach::kernels::cudnn
