#ifndef STAGECOACH_BASE_HASH_H_
#define STAGECOACH_BASE_HASH_H_

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

struct XXH3_state_s;

namespace stagecoach::base {

// A 128-bit fingerprint of bytes (XXH3, not cryptographic), computed piece by piece: it depends on
// the bytes, not on how they are divided into updates. Stable across runs and versions, so it may
// be stored. Thread-compatible; move-only, and a moved-from Hasher may only be destroyed or
// assigned to.
class Hasher {
 public:
  Hasher();

  void Update(absl::Span<const std::byte> bytes);
  void Update(absl::string_view text);

  // Adds the bytes of a number or enumerator as they lie in memory.
  template <typename T>
  void UpdateValue(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>,
                  "a struct may have padding and a pointer differs between runs");
    Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&value), sizeof(value)));
  }

  // Returns the hash of everything so far as 32 hexadecimal digits, as `xxh128sum` prints it. More
  // updates may follow.
  std::string HexDigest() const;

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, FreeState> state_;
};

// Returns the HexDigest of these bytes alone.
std::string HashOf(absl::Span<const std::byte> bytes);
std::string HashOf(absl::string_view text);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_HASH_H_
