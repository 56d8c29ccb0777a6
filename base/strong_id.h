#ifndef STAGECOACH_BASE_STRONG_ID_H_
#define STAGECOACH_BASE_STRONG_ID_H_

#include <compare>
#include <cstdint>
#include <utility>

namespace stagecoach::base {

// An integer that names one kind of thing, so that a rank cannot be passed where a stage is meant.
// Ids count from 0; -1 means "none". Conversion in both directions is explicit: `Rank(3)`,
// `rank.value()`.
template <typename Tag>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(int32_t value) : value_(value) {}

  constexpr int32_t value() const { return value_; }
  constexpr bool valid() const { return value_ >= 0; }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  constexpr StrongId& operator++() {
    ++value_;
    return *this;
  }

  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  int32_t value_ = -1;
};

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_STRONG_ID_H_
