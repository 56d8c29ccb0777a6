#include "tests/testing/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"

// Letters throughout: R rows, I inputs, O outputs, C features or classes; r, i, o, c index them.
namespace stagecoach::kernels::reference {
namespace {

constexpr double kSqrtTwoOverPi = 0.79788456080286535588;
constexpr double kGeluCubic = 0.044715;

template <typename T>
void CheckSize(absl::Span<const T> values, size_t expected) {
  STAGECOACH_CHECK(values.size() == expected,
                   absl::StrCat(values.size(), " values where the shape has ", expected));
}

// Returns the loss of one row; writes its derivative times `scale` to `gradient`.
double CrossEntropyRow(Values output, size_t label, double scale, absl::Span<double> gradient) {
  const double largest = *std::max_element(output.begin(), output.end());
  double sum = 0;
  for (double value : output) sum += std::exp(value - largest);
  for (size_t c = 0; c < output.size(); ++c) {
    const double probability = std::exp(output[c] - largest) / sum;
    gradient[c] = scale * (probability - (c == label ? 1.0 : 0.0));
  }
  return std::log(sum) - (output[label] - largest);
}

double SquaredErrorRow(Values output, size_t label, double scale, absl::Span<double> gradient) {
  const double classes = static_cast<double>(output.size());
  double sum = 0;
  for (size_t c = 0; c < output.size(); ++c) {
    const double error = output[c] - (c == label ? 1.0 : 0.0);
    sum += error * error;
    gradient[c] = scale * 2.0 / classes * error;
  }
  return sum / classes;
}

template <typename LossOfRow>
LossOutput SumOverRows(LossOfRow loss_of_row, const LossShape& shape, Values output,
                       absl::Span<const int32_t> labels, int64_t valid_rows, double scale) {
  const size_t R = shape.rows, C = shape.classes;
  CheckSize(output, R * C);
  CheckSize(labels, R);
  const auto P = static_cast<double>(shape.positions);
  LossOutput out;
  out.gradient.resize(R * C);
  for (size_t r = 0; r < static_cast<size_t>(valid_rows); ++r) {
    if (labels[r] == kNoLabel) continue;
    const Values row = output.subspan(r * C, C);
    const size_t label = labels[r];
    out.loss += loss_of_row(row, label, scale / P, absl::MakeSpan(&out.gradient[r * C], C)) / P;
    const auto largest = std::max_element(row.begin(), row.end());
    if (static_cast<size_t>(largest - row.begin()) == label) ++out.correct;
  }
  return out;
}

double Gelu(double z) {
  return 0.5 * z * (1.0 + std::tanh(kSqrtTwoOverPi * (z + kGeluCubic * z * z * z)));
}

double GeluDerivative(double z) {
  const double t = std::tanh(kSqrtTwoOverPi * (z + kGeluCubic * z * z * z));
  const double inner_derivative = kSqrtTwoOverPi * (1.0 + 3.0 * kGeluCubic * z * z);
  return 0.5 * (1.0 + t) + 0.5 * z * (1.0 - t * t) * inner_derivative;
}

double NormalDistribution(double z) { return 0.5 * std::erfc(-z * std::numbers::sqrt2 / 2.0); }

double GeluExactDerivative(double z) {
  const double density = std::exp(-0.5 * z * z) / std::sqrt(2.0 * std::numbers::pi);
  return NormalDistribution(z) + z * density;
}

}  // namespace

double Activate(Activation activation, double z) {
  switch (activation) {
    case Activation::kNone:
      return z;
    case Activation::kRelu:
      return std::max(0.0, z);
    case Activation::kGelu:
      return Gelu(z);
    case Activation::kGeluExact:
      return z * NormalDistribution(z);
    case Activation::kTanh:
      return std::tanh(z);
    case Activation::kSigmoid:
      return 1.0 / (1.0 + std::exp(-z));
  }
  base::PrintAndAbort(__FILE__, __LINE__, "Activate", "unknown activation");
}

double ActivationDerivative(Activation activation, double z) {
  switch (activation) {
    case Activation::kNone:
      return 1.0;
    case Activation::kRelu:
      return z > 0.0 ? 1.0 : 0.0;
    case Activation::kGelu:
      return GeluDerivative(z);
    case Activation::kGeluExact:
      return GeluExactDerivative(z);
    case Activation::kTanh:
      return 1.0 - std::tanh(z) * std::tanh(z);
    case Activation::kSigmoid: {
      const double y = Activate(activation, z);
      return y * (1.0 - y);
    }
  }
  base::PrintAndAbort(__FILE__, __LINE__, "ActivationDerivative", "unknown activation");
}

LinearOutput LinearForward(const LinearShape& shape, Values x, Values w, Values b) {
  const size_t R = shape.rows, I = shape.inputs, O = shape.outputs;
  CheckSize(x, R * I);
  CheckSize(w, I * O);
  CheckSize(b, shape.has_bias ? O : 0);
  LinearOutput out{Vector(R * O), Vector(R * O)};
  for (size_t r = 0; r < R; ++r) {
    double* z = &out.z[r * O];
    std::copy(b.begin(), b.end(), z);
    for (size_t i = 0; i < I; ++i) {
      for (size_t o = 0; o < O; ++o) z[o] += x[r * I + i] * w[i * O + o];
    }
  }
  for (size_t k = 0; k < R * O; ++k) out.y[k] = Activate(shape.activation, out.z[k]);
  return out;
}

LinearInputGradient LinearBackwardInput(const LinearShape& shape, Values dy, Values z, Values w) {
  const size_t R = shape.rows, I = shape.inputs, O = shape.outputs;
  CheckSize(dy, R * O);
  CheckSize(z, R * O);
  CheckSize(w, I * O);
  LinearInputGradient out{Vector(R * O), Vector(R * I)};
  for (size_t k = 0; k < R * O; ++k) {
    out.dz[k] = dy[k] * ActivationDerivative(shape.activation, z[k]);
  }
  for (size_t r = 0; r < R; ++r) {
    for (size_t i = 0; i < I; ++i) {
      double sum = 0;
      for (size_t o = 0; o < O; ++o) sum += out.dz[r * O + o] * w[i * O + o];
      out.dx[r * I + i] = sum;
    }
  }
  return out;
}

LinearWeightGradient LinearBackwardWeight(const LinearShape& shape, Values x, Values dz) {
  const size_t R = shape.rows, I = shape.inputs, O = shape.outputs;
  CheckSize(x, R * I);
  CheckSize(dz, R * O);
  LinearWeightGradient out{Vector(I * O), Vector(shape.has_bias ? O : 0)};
  for (size_t r = 0; r < R; ++r) {
    for (size_t i = 0; i < I; ++i) {
      for (size_t o = 0; o < O; ++o) out.dw[i * O + o] += x[r * I + i] * dz[r * O + o];
    }
    for (size_t o = 0; o < out.db.size(); ++o) out.db[o] += dz[r * O + o];
  }
  return out;
}

Vector EmbeddingForward(const EmbeddingShape& shape, absl::Span<const int32_t> ids, Values tokens,
                        Values positions) {
  const size_t R = shape.rows, T = shape.positions, V = shape.vocabulary, C = shape.features;
  CheckSize(ids, R * T);
  CheckSize(tokens, V * C);
  CheckSize(positions, shape.has_positions ? T * C : 0);
  Vector y(R * T * C);
  for (size_t n = 0; n < R * T; ++n) {
    for (size_t c = 0; c < C; ++c) {
      y[n * C + c] = double{shape.scale} * tokens[static_cast<size_t>(ids[n]) * C + c];
      if (shape.has_positions) y[n * C + c] += positions[n % T * C + c];
    }
  }
  return y;
}

EmbeddingGradient EmbeddingBackward(const EmbeddingShape& shape, absl::Span<const int32_t> ids,
                                    Values dy) {
  const size_t R = shape.rows, T = shape.positions, V = shape.vocabulary, C = shape.features;
  CheckSize(ids, R * T);
  CheckSize(dy, R * T * C);
  EmbeddingGradient out{Vector(V * C), Vector(shape.has_positions ? T * C : 0)};
  for (size_t n = 0; n < R * T; ++n) {
    for (size_t c = 0; c < C; ++c) {
      out.dtokens[static_cast<size_t>(ids[n]) * C + c] += double{shape.scale} * dy[n * C + c];
      if (shape.has_positions) out.dpositions[n % T * C + c] += dy[n * C + c];
    }
  }
  return out;
}

NormStatistics RowStatistics(const LayerNormShape& shape, Values statistics, int64_t row) {
  const size_t R = shape.rows, r = row;
  CheckSize(statistics, shape.centers ? R * 2 : R);
  if (!shape.centers) return {0.0, statistics[r]};
  return {statistics[r * 2], statistics[r * 2 + 1]};
}

LayerNormOutput LayerNormForward(const LayerNormShape& shape, Values x, Values gamma, Values beta) {
  const size_t R = shape.rows, C = shape.features;
  CheckSize(x, R * C);
  CheckSize(gamma, C);
  LayerNormOutput out{{}, Vector(R * C)};
  for (size_t r = 0; r < R; ++r) {
    const Values row = x.subspan(r * C, C);
    double mean = 0;
    if (shape.centers) {
      for (double value : row) mean += value / static_cast<double>(C);
      out.statistics.push_back(mean);
    }
    double variance = 0;
    for (double value : row) variance += (value - mean) * (value - mean) / static_cast<double>(C);
    const double rstd = 1.0 / std::sqrt(variance + shape.epsilon);
    out.statistics.push_back(rstd);
    for (size_t c = 0; c < C; ++c) {
      out.y[r * C + c] = (row[c] - mean) * rstd * gamma[c] + (shape.centers ? beta[c] : 0.0);
    }
  }
  return out;
}

Vector LayerNormBackwardInput(const LayerNormShape& shape, Values dy, Values x, Values gamma,
                              Values statistics) {
  const size_t R = shape.rows, C = shape.features;
  CheckSize(dy, R * C);
  CheckSize(x, R * C);
  CheckSize(gamma, C);
  Vector dx(R * C);
  for (size_t r = 0; r < R; ++r) {
    const auto [mean, rstd] = RowStatistics(shape, statistics, r);
    double mean_g = 0;
    double mean_g_xhat = 0;
    for (size_t c = 0; c < C; ++c) {
      const double g = dy[r * C + c] * gamma[c];
      if (shape.centers) mean_g += g / static_cast<double>(C);
      mean_g_xhat += g * (x[r * C + c] - mean) * rstd / static_cast<double>(C);
    }
    for (size_t c = 0; c < C; ++c) {
      const double g = dy[r * C + c] * gamma[c];
      const double xhat = (x[r * C + c] - mean) * rstd;
      dx[r * C + c] = rstd * (g - mean_g - xhat * mean_g_xhat);
    }
  }
  return dx;
}

LayerNormWeightGradient LayerNormBackwardWeight(const LayerNormShape& shape, Values dy, Values x,
                                                Values statistics) {
  const size_t R = shape.rows, C = shape.features;
  CheckSize(dy, R * C);
  CheckSize(x, R * C);
  LayerNormWeightGradient out{Vector(C), Vector(shape.centers ? C : 0)};
  for (size_t r = 0; r < R; ++r) {
    const auto [mean, rstd] = RowStatistics(shape, statistics, r);
    for (size_t c = 0; c < C; ++c) {
      out.dgamma[c] += dy[r * C + c] * (x[r * C + c] - mean) * rstd;
      if (shape.centers) out.dbeta[c] += dy[r * C + c];
    }
  }
  return out;
}

namespace {

// Returns the gate of a, and its derivative.
std::pair<double, double> GateOf(const SwiGluShape& shape, double a) {
  if (shape.gate == GluGate::kSilu) {
    const double s = 1.0 / (1.0 + std::exp(-a));
    return {s, s * (1.0 - s)};
  }
  const double t = std::tanh(kSqrtTwoOverPi * (a + kGeluCubic * a * a * a));
  return {0.5 * (1.0 + t), 0.5 * (1.0 - t * t) * kSqrtTwoOverPi * (1.0 + 3.0 * kGeluCubic * a * a)};
}

}  // namespace

Vector SwiGluForward(const SwiGluShape& shape, Values x) {
  const size_t R = shape.rows, C = shape.features;
  CheckSize(x, R * 2 * C);
  Vector y(R * C);
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) {
      const double a = x[r * 2 * C + c], b = x[r * 2 * C + C + c];
      y[r * C + c] = a * GateOf(shape, a).first * b;
    }
  }
  return y;
}

Vector SwiGluBackward(const SwiGluShape& shape, Values dy, Values x) {
  const size_t R = shape.rows, C = shape.features;
  CheckSize(x, R * 2 * C);
  CheckSize(dy, R * C);
  Vector dx(R * 2 * C);
  for (size_t r = 0; r < R; ++r) {
    for (size_t c = 0; c < C; ++c) {
      const size_t at_a = r * 2 * C + c, at_b = at_a + C;
      const double a = x[at_a];
      const auto [s, ds] = GateOf(shape, a);
      dx[at_a] = dy[r * C + c] * x[at_b] * (s + a * ds);
      dx[at_b] = dy[r * C + c] * a * s;
    }
  }
  return dx;
}

Vector Dropout(const DropoutShape& shape, const DropoutKey& key, int64_t first_sample,
               absl::Span<const float> x) {
  const size_t R = shape.rows, E = shape.elements;
  CheckSize(x, R * E);
  const base::RandomStream random(key.seed, key.stream);
  Vector y;
  for (size_t r = 0; r < R; ++r) {
    const uint64_t first_word = (static_cast<uint64_t>(first_sample) + r) * ((E + 3) / 4 * 4);
    for (size_t e = 0; e < E; ++e) {
      const double draw = static_cast<double>(random.Uint32(first_word + e)) * 0x1p-32;
      const auto scale = static_cast<float>(1.0 / (1.0 - static_cast<double>(shape.rate)));
      y.push_back(draw < static_cast<double>(shape.rate) ? 0.0F : x[r * E + e] * scale);
    }
  }
  return y;
}

LossOutput SoftmaxCrossEntropy(const LossShape& shape, Values output,
                               absl::Span<const int32_t> labels, int64_t valid_rows, double scale) {
  return SumOverRows(CrossEntropyRow, shape, output, labels, valid_rows, scale);
}

LossOutput MeanSquaredError(const LossShape& shape, Values output, absl::Span<const int32_t> labels,
                            int64_t valid_rows, double scale) {
  return SumOverRows(SquaredErrorRow, shape, output, labels, valid_rows, scale);
}

void AdamW(const AdamWStep& step, Values gradient, AdamWState& state, double gradient_scale) {
  CheckSize(gradient, state.parameter.size());
  const double beta1 = step.beta1, beta2 = step.beta2;
  const double correction1 = 1.0 - std::pow(beta1, step.step);
  const double correction2 = 1.0 - std::pow(beta2, step.step);
  for (size_t k = 0; k < gradient.size(); ++k) {
    double& p = state.parameter[k];
    double& m = state.m[k];
    double& v = state.v[k];
    const double g = gradient[k] * gradient_scale;
    m = beta1 * m + (1.0 - beta1) * g;
    v = beta2 * v + (1.0 - beta2) * g * g;
    p -= step.learning_rate *
         (m / correction1 / (std::sqrt(v / correction2) + step.epsilon) + step.weight_decay * p);
  }
}

void Sgd(const SgdStep& step, Values gradient, SgdState& state, double gradient_scale) {
  CheckSize(gradient, state.parameter.size());
  for (size_t k = 0; k < gradient.size(); ++k) {
    double& p = state.parameter[k];
    double& m = state.momentum[k];
    m = step.momentum * m + gradient[k] * gradient_scale + step.weight_decay * p;
    p -= step.learning_rate * m;
  }
}

double SquaredNorm(Values x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  return sum;
}

Vector Add(Values a, Values b) {
  CheckSize(b, a.size());
  Vector y(a.size());
  for (size_t k = 0; k < a.size(); ++k) y[k] = a[k] + b[k];
  return y;
}

}  // namespace stagecoach::kernels::reference
