#include "engine/transport/transport.h"

#include "absl/strings/str_cat.h"

namespace stagecoach::engine {

std::string ToString(const Message& message) {
  if (message.kind == Message::Kind::kNorms) return "norms of the gradients";
  if (message.kind == Message::Kind::kResults) return "results of the loss";
  if (message.kind == Message::Kind::kAddends) return "addends of a sum";
  return absl::StrCat(message.kind == Message::Kind::kActivation ? "activation" : "gradient",
                      " of stage ", message.boundary.value(), ", micro-batch ",
                      message.micro_batch.value());
}

}  // namespace stagecoach::engine
