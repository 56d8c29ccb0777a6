#include "base/hash.h"

#include <xxhash.h>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace stagecoach::base {

Hasher::Hasher() : state_(XXH3_createState()) {
  STAGECOACH_CHECK(state_ != nullptr, "out of memory for a hash state");
  XXH3_128bits_reset(state_.get());
}

void Hasher::FreeState::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

void Hasher::Update(absl::Span<const std::byte> bytes) {
  XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
}

void Hasher::Update(absl::string_view text) {
  XXH3_128bits_update(state_.get(), text.data(), text.size());
}

std::string Hasher::HexDigest() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest)));
}

std::string HashOf(absl::Span<const std::byte> bytes) {
  Hasher hasher;
  hasher.Update(bytes);
  return hasher.HexDigest();
}

std::string HashOf(absl::string_view text) {
  Hasher hasher;
  hasher.Update(text);
  return hasher.HexDigest();
}

}  // namespace stagecoach::base
