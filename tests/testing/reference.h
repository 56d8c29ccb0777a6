#ifndef STAGECOACH_TESTS_TESTING_REFERENCE_H_
#define STAGECOACH_TESTS_TESTING_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/convolution.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/image_norm.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/pooling.h"
#include "kernels/ops/swiglu.h"

// The oracle of every backend: each operation of kernels/ops/ as plain loops in double precision.
// Formulas, shapes and names are those of the contracts there. Matrices are row-major. The
// functions are slow, single-threaded and pure; a span whose length does not fit the shape aborts.
namespace stagecoach::kernels::reference {

using Values = absl::Span<const double>;
using Vector = std::vector<double>;

double Activate(Activation activation, double z);
// kRelu has the derivative 0 at its kink.
double ActivationDerivative(Activation activation, double z);

struct LinearOutput {
  Vector z;
  Vector y;
};
LinearOutput LinearForward(const LinearShape& shape, Values x, Values w, Values b);

struct LinearInputGradient {
  Vector dz;
  Vector dx;
};
LinearInputGradient LinearBackwardInput(const LinearShape& shape, Values dy, Values z, Values w);

struct LinearWeightGradient {
  Vector dw;
  Vector db;
};
LinearWeightGradient LinearBackwardWeight(const LinearShape& shape, Values x, Values dz);

Vector EmbeddingForward(const EmbeddingShape& shape, absl::Span<const int32_t> ids, Values tokens,
                        Values positions);

struct EmbeddingGradient {
  Vector dtokens;
  Vector dpositions;  // empty without positions
};
EmbeddingGradient EmbeddingBackward(const EmbeddingShape& shape, absl::Span<const int32_t> ids,
                                    Values dy);

// Also for RMSNorm: with its shape `beta` is not read and `dbeta` is empty.
struct LayerNormOutput {
  Vector statistics;
  Vector y;
};
LayerNormOutput LayerNormForward(const LayerNormShape& shape, Values x, Values gamma, Values beta);
Vector LayerNormBackwardInput(const LayerNormShape& shape, Values dy, Values x, Values gamma,
                              Values statistics);

// The statistics of one row, from those of all.
struct NormStatistics {
  double mean, rstd;
};
NormStatistics RowStatistics(const LayerNormShape& shape, Values statistics, int64_t row);

struct LayerNormWeightGradient {
  Vector dgamma;
  Vector dbeta;
};
LayerNormWeightGradient LayerNormBackwardWeight(const LayerNormShape& shape, Values dy, Values x,
                                                Values statistics);

// Returns a scaling that leaves the first pair as it is, and divides the others by more and more.
RotaryScaling ScaledRotation(int64_t pairs, double scale);

struct AttentionOutput {
  std::vector<size_t> first;  // (B, T): the first position that one sees
  Vector scores;              // (B, H, T, T): s, and p; both 0 for positions that are not seen
  Vector weights;
  Vector statistics;
  Vector y;
};
// `documents` is empty without documents.
AttentionOutput AttentionForward(const AttentionShape& shape, Values qkv,
                                 absl::Span<const int32_t> documents = {});
// Returns dqkv. Weights and y are those of AttentionForward.
Vector AttentionBackwardInput(const AttentionShape& shape, Values dy, Values qkv,
                              absl::Span<const int32_t> documents = {});

// `b` is empty without a bias, and then `db` is, too.
Vector ConvolutionForward(const ConvolutionShape& shape, Values x, Values w, Values b);
Vector ConvolutionBackwardInput(const ConvolutionShape& shape, Values dy, Values w);
struct ConvolutionWeightGradient {
  Vector dw;
  Vector db;
};
ConvolutionWeightGradient ConvolutionBackwardWeight(const ConvolutionShape& shape, Values x,
                                                    Values dy);

Vector PoolingForward(const PoolingShape& shape, Values x);
Vector PoolingBackward(const PoolingShape& shape, Values dy, Values x);

struct ImageNormOutput {
  Vector mean;
  Vector variance;
  Vector y;
};
ImageNormOutput ImageNormForward(const ImageNormShape& shape, Values x, Values gamma, Values beta);
Vector ImageNormBackwardInput(const ImageNormShape& shape, Values dy, Values x, Values gamma,
                              Values mean, Values variance);
LayerNormWeightGradient ImageNormBackwardWeight(const ImageNormShape& shape, Values dy, Values x,
                                                Values mean, Values variance);
// Returns the set of an element of x, and its channel.
int64_t ImageNormSetOf(const ImageNormShape& shape, int64_t element);
int64_t ImageNormChannelOf(const ImageNormShape& shape, int64_t element);

Vector SwiGluForward(const SwiGluShape& shape, Values x);
Vector SwiGluBackward(const SwiGluShape& shape, Values dy, Values x);

// Computes in float32, which is exact except for one rounding. `key.first_sample` is not read.
Vector Dropout(const DropoutShape& shape, const DropoutKey& key, int64_t first_sample,
               absl::Span<const float> x);

struct LossOutput {
  double loss = 0;
  int64_t correct = 0;
  Vector gradient;
};
LossOutput SoftmaxCrossEntropy(const LossShape& shape, Values output,
                               absl::Span<const int32_t> labels, int64_t valid_rows, double scale);
LossOutput MeanSquaredError(const LossShape& shape, Values output, absl::Span<const int32_t> labels,
                            int64_t valid_rows, double scale);

// The optimizer's states of each parameter, updated in place.
struct AdamWState {
  Vector parameter;
  Vector m;
  Vector v;
};
// `step.gradient_scale`, which is a device's, is not read.
void AdamW(const AdamWStep& step, Values gradient, AdamWState& state, double gradient_scale = 1.0);

struct SgdState {
  Vector parameter;
  Vector momentum;
};
void Sgd(const SgdStep& step, Values gradient, SgdState& state, double gradient_scale = 1.0);

double SquaredNorm(Values x);
Vector Add(Values a, Values b);

}  // namespace stagecoach::kernels::reference

#endif  // STAGECOACH_TESTS_TESTING_REFERENCE_H_
