#include "tests/testing/cuda/emulator/async_copies.h"

#include <cstring>

namespace stagecoach::testing::cuda {
namespace {

// These bytes are NaN as a float and as bfloat16.
constexpr std::byte kUnderWay{0xFF};

}  // namespace

void AsyncCopies::Start(void* to, const void* from, bool reads) {
  Copy copy{.group = committed_, .to = to, .from = reads ? from : nullptr, .bytes = {}};
  if (reads) std::memcpy(copy.bytes.data(), from, kBytes);
  std::memset(to, static_cast<int>(kUnderWay), kBytes);
  copies_.push_back(copy);
}

const char* AsyncCopies::Wait(size_t groups) {
  for (; !copies_.empty() && copies_.front().group + groups < committed_; copies_.pop_front()) {
    const Copy& copy = copies_.front();
    Bytes poison;
    poison.fill(kUnderWay);
    if (std::memcmp(copy.to, poison.data(), kBytes) != 0) {
      return "whose destination has changed since its start";
    }
    if (copy.from != nullptr && std::memcmp(copy.from, copy.bytes.data(), kBytes) != 0) {
      return "whose source has changed since its start";
    }
    std::memcpy(copy.to, copy.bytes.data(), kBytes);
    arrived_.push_back(copy.to);
  }
  return nullptr;
}

}  // namespace stagecoach::testing::cuda
