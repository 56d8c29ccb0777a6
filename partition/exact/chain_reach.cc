#include "partition/exact/chain_reach.h"

#include <utility>

namespace stagecoach::partition {

ChainReach::ChainReach(const ChainTerms& terms)
    : terms_(terms),
      elapsed_(terms),
      receive_(static_cast<size_t>(terms.layers()) + 1, 0),
      send_(receive_.size(), 0),
      before_(receive_.size()),
      window_(receive_.size()) {
  for (int stage = 0; stage < terms_.stages(); ++stage) {
    least_messages_.push_back(terms_.LeastMessageUnits(stage));
  }
}

bool ChainReach::Probe(int64_t limit) {
  limit_ = limit;
  needed_ = ChainTerms::kNever;
  if (is_useful_.empty() && !FindEarliest()) return false;
  bands_.assign(1, Band{});
  is_reached_.assign(1, 1);
  std::fill(receive_.begin(), receive_.end(), 0);
  for (int stage = 0; stage < terms_.stages(); ++stage) {
    if (!Advance(stage)) return false;
  }
  return true;
}

// Used before there is a best cut: from the back, every stage takes as many layers as its time and
// memory could hold, so that no stage begins too early for the rest to be within the limit.
bool ChainReach::FindEarliest() {
  useful_.assign(static_cast<size_t>(terms_.stages()) + 1,
                 Band{.low = terms_.layers(), .high = terms_.layers()});
  for (int stage = terms_.stages() - 1; stage >= 0; --stage) {
    const int end = useful_[stage + 1].low;
    int begin = end;
    for (int64_t units = least_messages_[stage]; begin > stage; --begin) {
      if (!terms_.Fits(begin - 1, end, stage)) break;
      units += terms_.LayerUnits(begin - 1, stage);
      if (units > limit_) {
        Need(units);
        break;
      }
    }
    useful_[stage] = {.low = begin, .high = terms_.layers() - (terms_.stages() - stage)};
  }
  return useful_[0].low == 0;
}

// Finds where the next stage may begin: wherever a range of this stage may end.
bool ChainReach::Advance(int stage) {
  const Band& from = bands_[stage];
  const Band& useful = useful_[stage + 1];
  Band to = {.low = std::max(from.low + 1, useful.low), .offset = is_reached_.size()};
  to.high = to.low - 1;
  int next_begin = from.low;
  window_front_ = window_end_ = 0;
  elapsed_.Start(from.low, stage);
  for (int end = to.low; end <= useful.high; ++end) {
    elapsed_.ExtendTo(end);
    for (; next_begin < end && next_begin <= from.high; ++next_begin) {
      if (IsReached(next_begin, stage)) OfferBegin(next_begin);
    }
    if (end > from.high) {
      const int64_t least = elapsed_[end] - elapsed_[from.high] + least_messages_[stage];
      if (least > limit_) {
        Need(least);
        break;
      }
      if (!terms_.Fits(from.high, end, stage)) break;
    }
    if (IsUseful(end, stage + 1)) {
      send_[end] = terms_.SendUnits(end, stage);
      is_reached_.push_back(IsReachedFromBefore(end, stage) ? 1 : 0);
      if (is_reached_.back() != 0) to.high = end;
    } else {
      is_reached_.push_back(0);
    }
  }
  is_reached_.resize(to.offset + static_cast<size_t>(to.high + 1 - to.low));
  if (to.high < to.low) return false;
  for (; is_reached_[to.offset] == 0; ++to.offset) ++to.low;
  bands_.push_back(to);
  std::swap(receive_, send_);
  return true;
}

// The time of a range is before_[begin], plus elapsed_[end], plus what is sent at the end, plus the
// extra time; if messages overlap, the largest of that without messages, and of the messages.
void ChainReach::OfferBegin(int begin) {
  before_[begin] = terms_.StartUnits(begin) - elapsed_[begin];
  if (terms_.overlaps_messages() && receive_[begin] > limit_) {
    before_[begin] = ChainTerms::kNever;
    Need(receive_[begin]);
    return;
  }
  if (!terms_.overlaps_messages()) before_[begin] += receive_[begin];
  while (window_end_ > window_front_ && before_[window_[window_end_ - 1]] >= before_[begin]) {
    --window_end_;
  }
  window_[window_end_++] = begin;
}

bool ChainReach::IsReachedFromBefore(int end, int stage) {
  while (window_front_ < window_end_ && !terms_.Fits(window_[window_front_], end, stage))
    ++window_front_;
  if (window_front_ == window_end_) return false;
  if (terms_.overlaps_messages() && send_[end] > limit_) {
    Need(send_[end]);
    return false;
  }
  const int64_t least = before_[window_[window_front_]] + After(end);
  if (least > limit_) {
    Need(least);
    return false;
  }
  return !terms_.has_extra() || IsReachedFromAny(end, stage);
}

// The begin that would be best without extra_ns is the most likely to pass, so it is tried first.
bool ChainReach::IsReachedFromAny(int end, int stage) {
  const int likeliest = window_[window_front_];
  if (PassesWithExtra(likeliest, end, stage)) return true;
  const Band& from = bands_[stage];
  for (int begin = std::min(end - 1, from.high); begin >= from.low; --begin) {
    if (begin == likeliest || !IsReached(begin, stage) || before_[begin] == ChainTerms::kNever)
      continue;
    if (!terms_.Fits(begin, end, stage)) return false;
    const int64_t least = elapsed_[end] - elapsed_[begin] + least_messages_[stage];
    if (least > limit_) {
      Need(least);
      return false;
    }
    const int64_t units = before_[begin] + After(end);
    if (units > limit_) {
      Need(units);
    } else if (PassesWithExtra(begin, end, stage)) {
      return true;
    }
  }
  return false;
}

bool ChainReach::PassesWithExtra(int begin, int end, int stage) {
  const int64_t extra = terms_.ExtraUnits(begin, end - 1, stage);
  if (extra == ChainTerms::kNever) return false;
  const int64_t units = before_[begin] + After(end) + extra;
  if (units > limit_) Need(units);
  return units <= limit_;
}

void ChainReach::Prune(int64_t limit) {
  limit_ = limit;
  send_[terms_.layers()] = 0;
  for (int stage = terms_.stages() - 1; stage >= 0; --stage) PruneStage(stage);
  useful_ = bands_;
  is_useful_ = is_reached_;
}

// Keeps the part of the stage's band from which the later stages can continue: the mirror image of
// Advance, without extra times.
void ChainReach::PruneStage(int stage) {
  const Band& from = bands_[stage];
  const Band& to = bands_[stage + 1];
  const bool overlaps = terms_.overlaps_messages();
  int next_end = to.high;
  window_front_ = window_end_ = 0;
  elapsed_.Start(from.low, stage);
  elapsed_.ExtendTo(to.high);
  for (int begin = from.high; begin >= from.low; --begin) {
    for (; next_end > begin && next_end >= to.low; --next_end) {
      if (!IsReached(next_end, stage + 1) || (overlaps && send_[next_end] > limit_)) continue;
      while (window_end_ > window_front_ && After(window_[window_end_ - 1]) >= After(next_end)) {
        --window_end_;
      }
      window_[window_end_++] = next_end;
    }
    uint8_t& is_reached = is_reached_[Index(begin, stage)];
    if (is_reached == 0) continue;
    while (window_front_ < window_end_ && !terms_.Fits(begin, window_[window_front_], stage)) {
      ++window_front_;
    }
    receive_[begin] = terms_.ReceiveUnits(begin, stage);
    const int64_t before =
        terms_.StartUnits(begin) - elapsed_[begin] + (overlaps ? 0 : receive_[begin]);
    is_reached = window_front_ < window_end_ && (!overlaps || receive_[begin] <= limit_) &&
                 before + After(window_[window_front_]) <= limit_;
  }
  std::swap(receive_, send_);
}

}  // namespace stagecoach::partition
