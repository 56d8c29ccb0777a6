#include "engine/comm/host_address.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/comm/socket.h"

namespace stagecoach::engine {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

std::string HostName() {
  std::array<char, HOST_NAME_MAX + 1> name = {};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Returns a text that is equal for processes that share their loopback interface: those of one
// network namespace since one boot of a kernel. Host names may be equal on several hosts.
std::string HostIdentity() {
  std::array<char, 64> space = {};
  const ssize_t length = readlink("/proc/self/ns/net", space.data(), space.size() - 1);
  const absl::StatusOr<std::string> boot = base::ReadFile("/proc/sys/kernel/random/boot_id", 64);
  return absl::StrCat(boot.ok() ? *boot : HostName(), " ", length > 0 ? space.data() : "");
}

}  // namespace

absl::StatusOr<std::string> AgreeOnAddress(
    absl::string_view own_address,
    absl::FunctionRef<absl::StatusOr<std::vector<std::string>>(const std::string&)> gather) {
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, gather(HostIdentity()));
  const bool is_one_host = std::all_of(
      hosts.begin(), hosts.end(), [&](const std::string& host) { return host == hosts.front(); });
  if (is_one_host) return std::string(kLoopback);
  const std::string name = own_address.empty() ? HostName() : std::string(own_address);
  ASSIGN_OR_RETURN(std::string host, OwnHost(name));
  if (!IsLoopback(host)) return host;
  return absl::UnavailableError(
      absl::StrCat(name, " is ", host,
                   " here, where other hosts cannot reach this one (see /etc/hosts): give the "
                   "place by another name or by number"));
}

}  // namespace stagecoach::engine
