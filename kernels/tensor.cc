#include "kernels/tensor.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace stagecoach::kernels {

Shape::Shape(std::initializer_list<int64_t> dims)
    : Shape(absl::MakeConstSpan(dims.begin(), dims.size())) {}

Shape::Shape(absl::Span<const int64_t> dims) : rank_(static_cast<int>(dims.size())) {
  STAGECOACH_CHECK(dims.size() <= kMaxRank,
                   absl::StrCat("a shape has at most ", kMaxRank, " dimensions"));
  for (int64_t dim : dims) {
    STAGECOACH_CHECK(dim >= 0, absl::StrCat("negative extent ", dim));
  }
  std::copy(dims.begin(), dims.end(), dims_.begin());
}

int64_t Shape::elements() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= dim(i);
  return n;
}

Shape Shape::Batched(int64_t rows) const {
  STAGECOACH_CHECK(rank_ < kMaxRank, "no room for a batch dimension");
  Shape batched;
  batched.rank_ = rank_ + 1;
  batched.order_ = order_;
  batched.dims_[0] = rows;
  std::copy_n(dims_.begin(), rank_, batched.dims_.begin() + 1);
  return batched;
}

Shape Shape::InOrder(ImageOrder order) const {
  STAGECOACH_CHECK(order == ImageOrder::kChannelsFirst || rank_ >= 3, "images have three extents");
  Shape ordered = *this;
  ordered.order_ = order;
  return ordered;
}

std::string Shape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(dims_.begin(), dims_.begin() + rank_, ", "), "]");
}

}  // namespace stagecoach::kernels
