#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/functional/function_ref.h"
#include "tests/testing/reference.h"

// Names of extents and indices are those of the contracts.
namespace stagecoach::kernels::reference {
namespace {

size_t At(int64_t index) { return static_cast<size_t>(index); }

// Calls term(index in x, in w, in y) for every product.
void ForEachProduct(const ConvolutionShape& s,
                    absl::FunctionRef<void(size_t x, size_t w, size_t y)> term) {
  const int64_t inputs = s.inputs / s.groups, outputs = s.outputs / s.groups, K = s.kernel;
  const int64_t P = s.output_height(), Q = s.output_width();
  const auto of_window = [&](int64_t n, int64_t o, int64_t p, int64_t q) {
    for (int64_t i = 0; i < inputs; ++i) {
      for (int64_t k = 0; k < K; ++k) {
        for (int64_t l = 0; l < K; ++l) {
          const int64_t h = p * s.stride + k - s.padding, w = q * s.stride + l - s.padding;
          if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
          const int64_t channel = o / outputs * inputs + i;
          term(At(((n * s.inputs + channel) * s.height + h) * s.width + w),
               At(((o * inputs + i) * K + k) * K + l), At(((n * s.outputs + o) * P + p) * Q + q));
        }
      }
    }
  };
  for (int64_t n = 0; n < s.samples; ++n) {
    for (int64_t o = 0; o < s.outputs; ++o) {
      for (int64_t p = 0; p < P; ++p) {
        for (int64_t q = 0; q < Q; ++q) of_window(n, o, p, q);
      }
    }
  }
}

size_t ElementsOfY(const ConvolutionShape& s) {
  return At(s.samples * s.outputs * s.output_height() * s.output_width());
}

int64_t OutputOf(const ConvolutionShape& s, size_t y) {
  return static_cast<int64_t>(y) / (s.output_height() * s.output_width()) % s.outputs;
}

// Calls window(index in y, indices in x) for every output.
void ForEachWindow(const PoolingShape& s,
                   absl::FunctionRef<void(size_t y, const std::vector<size_t>& x)> window) {
  size_t y = 0;
  for (int64_t n = 0; n < s.samples * s.channels; ++n) {
    for (int64_t p = 0; p < s.output_height(); ++p) {
      for (int64_t q = 0; q < s.output_width(); ++q) {
        std::vector<size_t> elements;
        for (int64_t e = 0; e < s.kernel_height * s.kernel_width; ++e) {
          const int64_t h = p * s.stride - s.padding + e / s.kernel_width;
          const int64_t w = q * s.stride - s.padding + e % s.kernel_width;
          if (h < 0 || h >= s.height || w < 0 || w >= s.width) continue;
          elements.push_back(At((n * s.height + h) * s.width + w));
        }
        window(y++, elements);
      }
    }
  }
}

// Returns the first of the largest; NaN is larger than numbers.
size_t LargestOf(Values x, const std::vector<size_t>& elements) {
  return *std::max_element(elements.begin(), elements.end(), [&](size_t a, size_t b) {
    return std::isnan(x[a]) ? false : std::isnan(x[b]) || x[a] < x[b];
  });
}

double ShareOf(const PoolingShape& s) {
  return 1.0 / static_cast<double>(s.kernel_height * s.kernel_width);
}

}  // namespace

Vector ConvolutionForward(const ConvolutionShape& shape, Values x, Values w, Values b) {
  Vector y(ElementsOfY(shape));
  for (size_t i = 0; i < y.size() && !b.empty(); ++i) y[i] = b[At(OutputOf(shape, i))];
  ForEachProduct(shape, [&](size_t xi, size_t wi, size_t yi) { y[yi] += w[wi] * x[xi]; });
  return y;
}

Vector ConvolutionBackwardInput(const ConvolutionShape& shape, Values dy, Values w) {
  Vector dx(At(shape.samples * shape.inputs * shape.height * shape.width));
  ForEachProduct(shape, [&](size_t xi, size_t wi, size_t yi) { dx[xi] += w[wi] * dy[yi]; });
  return dx;
}

ConvolutionWeightGradient ConvolutionBackwardWeight(const ConvolutionShape& shape, Values x,
                                                    Values dy) {
  ConvolutionWeightGradient gradient;
  const int64_t window = shape.kernel * shape.kernel;
  gradient.dw.resize(At(shape.outputs * (shape.inputs / shape.groups) * window));
  ForEachProduct(shape,
                 [&](size_t xi, size_t wi, size_t yi) { gradient.dw[wi] += x[xi] * dy[yi]; });
  if (!shape.has_bias) return gradient;
  gradient.db.resize(At(shape.outputs));
  for (size_t i = 0; i < dy.size(); ++i) gradient.db[At(OutputOf(shape, i))] += dy[i];
  return gradient;
}

Vector PoolingForward(const PoolingShape& shape, Values x) {
  Vector y(At(shape.samples * shape.channels * shape.output_height() * shape.output_width()));
  ForEachWindow(shape, [&](size_t i, const std::vector<size_t>& elements) {
    if (shape.kind == Pooling::kMax) {
      y[i] = x[LargestOf(x, elements)];
    } else {
      for (const size_t e : elements) y[i] += x[e] * ShareOf(shape);
    }
  });
  return y;
}

Vector PoolingBackward(const PoolingShape& shape, Values dy, Values x) {
  Vector dx(At(shape.samples * shape.channels * shape.height * shape.width));
  ForEachWindow(shape, [&](size_t i, const std::vector<size_t>& elements) {
    if (shape.kind == Pooling::kMax) {
      dx[LargestOf(x, elements)] += dy[i];
    } else {
      for (const size_t e : elements) dx[e] += dy[i] * ShareOf(shape);
    }
  });
  return dx;
}

int64_t ImageNormChannelOf(const ImageNormShape& shape, int64_t element) {
  return element / shape.area % shape.channels;
}

int64_t ImageNormSetOf(const ImageNormShape& shape, int64_t element) {
  const int64_t channel = ImageNormChannelOf(shape, element);
  if (shape.groups == 0) return channel;
  const int64_t sample = element / shape.area / shape.channels;
  return sample * shape.groups + channel * shape.groups / shape.channels;
}

ImageNormOutput ImageNormForward(const ImageNormShape& shape, Values x, Values gamma, Values beta) {
  ImageNormOutput out{Vector(At(shape.sets())), Vector(At(shape.sets())), Vector(x.size())};
  const auto size = static_cast<double>(shape.set_size());
  const auto set = [&](size_t i) { return At(ImageNormSetOf(shape, static_cast<int64_t>(i))); };
  for (size_t i = 0; i < x.size(); ++i) out.mean[set(i)] += x[i] / size;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = x[i] - out.mean[set(i)];
    out.variance[set(i)] += d * d / size;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t c = At(ImageNormChannelOf(shape, static_cast<int64_t>(i)));
    const double rstd = 1.0 / std::sqrt(out.variance[set(i)] + double{shape.epsilon});
    out.y[i] = (x[i] - out.mean[set(i)]) * rstd * gamma[c] + beta[c];
  }
  return out;
}

Vector ImageNormBackwardInput(const ImageNormShape& shape, Values dy, Values x, Values gamma,
                              Values mean, Values variance) {
  const auto size = static_cast<double>(shape.set_size());
  Vector sum(mean.size()), sum_xhat(mean.size()), dx(x.size());
  const auto each = [&](auto use) {
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t s = At(ImageNormSetOf(shape, static_cast<int64_t>(i)));
      const double rstd = 1.0 / std::sqrt(variance[s] + double{shape.epsilon});
      const double g = dy[i] * gamma[At(ImageNormChannelOf(shape, static_cast<int64_t>(i)))];
      use(i, s, g, (x[i] - mean[s]) * rstd, rstd);
    }
  };
  each([&](size_t, size_t s, double g, double xhat, double) {
    sum[s] += g / size;
    sum_xhat[s] += g * xhat / size;
  });
  each([&](size_t i, size_t s, double g, double xhat, double rstd) {
    dx[i] = rstd * (g - sum[s] - xhat * sum_xhat[s]);
  });
  return dx;
}

LayerNormWeightGradient ImageNormBackwardWeight(const ImageNormShape& shape, Values dy, Values x,
                                                Values mean, Values variance) {
  LayerNormWeightGradient gradient{Vector(At(shape.channels)), Vector(At(shape.channels))};
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t s = At(ImageNormSetOf(shape, static_cast<int64_t>(i)));
    const size_t c = At(ImageNormChannelOf(shape, static_cast<int64_t>(i)));
    gradient.dgamma[c] += dy[i] * (x[i] - mean[s]) / std::sqrt(variance[s] + double{shape.epsilon});
    gradient.dbeta[c] += dy[i];
  }
  return gradient;
}

}  // namespace stagecoach::kernels::reference
