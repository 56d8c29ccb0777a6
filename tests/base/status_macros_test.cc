#include "base/status_macros.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/cord.h"

namespace stagecoach::base {
namespace {

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError("odd");
  return x / 2;
}

absl::StatusOr<int> Quarter(int x) {
  ASSIGN_OR_RETURN(const int half, Half(x));
  ASSIGN_OR_RETURN(int quarter, Half(half));
  return quarter;
}

absl::Status FirstError(absl::Status a, absl::Status b) {
  RETURN_IF_ERROR(a);
  RETURN_IF_ERROR(b);
  return absl::OkStatus();
}

TEST(AssignOrReturn, AssignsDeclarationsSeveralTimesInOneScope) { EXPECT_EQ(*Quarter(12), 3); }

TEST(AssignOrReturn, ReturnsTheErrorOfTheFirstFailure) {
  EXPECT_EQ(Quarter(6).status(), absl::InvalidArgumentError("odd"));
}

TEST(AssignOrReturn, MovesMoveOnlyValues) {
  const auto unwrap = [](absl::StatusOr<std::unique_ptr<int>> result) -> absl::StatusOr<int> {
    ASSIGN_OR_RETURN(std::unique_ptr<int> owner, std::move(result));
    return *owner;
  };
  EXPECT_EQ(*unwrap(std::make_unique<int>(5)), 5);
}

TEST(AssignOrReturn, EvaluatesItsExpressionOnce) {
  int evaluations = 0;
  const auto run = [&evaluations]() -> absl::Status {
    ASSIGN_OR_RETURN([[maybe_unused]] int half, (++evaluations, Half(2)));
    return absl::OkStatus();
  };
  ASSERT_TRUE(run().ok());
  EXPECT_EQ(evaluations, 1);
}

TEST(AssignOrReturn, ObeysAnIfWithoutBraces) {
  const auto run = [](bool halve, int x) -> absl::StatusOr<int> {
    if (halve)
      ASSIGN_OR_RETURN(x, Half(x));
    else
      x = -x;
    return x;
  };
  EXPECT_EQ(*run(true, 4), 2);
  EXPECT_EQ(*run(false, 3), -3);
}

TEST(AssignOrReturn, NestsInALambdaInItsOwnArgument) {
  const auto call = [](const std::function<absl::StatusOr<int>()>& f) { return f(); };
  const auto run = [&call](int x) -> absl::StatusOr<int> {
    ASSIGN_OR_RETURN(const int quarter, call([x]() -> absl::StatusOr<int> {
                       ASSIGN_OR_RETURN(const int half, Half(x));
                       return Half(half);
                     }));
    return quarter;
  };
  EXPECT_EQ(*run(8), 2);
}

TEST(ReturnIfError, ReturnsTheFirstError) {
  EXPECT_EQ(FirstError(absl::OkStatus(), absl::InternalError("b")), absl::InternalError("b"));
  EXPECT_EQ(FirstError(absl::InternalError("a"), absl::InternalError("b")),
            absl::InternalError("a"));
}

TEST(ReturnIfError, FallsThroughWhenOk) {
  EXPECT_EQ(FirstError(absl::OkStatus(), absl::OkStatus()), absl::OkStatus());
}

TEST(ReturnIfError, ObeysAnIfWithoutBraces) {
  const auto run = [](bool check) -> absl::Status {
    if (check)
      RETURN_IF_ERROR(absl::InternalError("checked"));
    else
      return absl::CancelledError("unchecked");
    return absl::OkStatus();
  };
  EXPECT_EQ(run(true), absl::InternalError("checked"));
  EXPECT_EQ(run(false), absl::CancelledError("unchecked"));
}

TEST(Annotate, PrefixesTheMessageAndKeepsTheCode) {
  EXPECT_EQ(Annotate(absl::NotFoundError("no file"), "stage 2"),
            absl::NotFoundError("stage 2: no file"));
}

TEST(Annotate, KeepsPayloads) {
  absl::Status status = absl::NotFoundError("no file");
  status.SetPayload("url", absl::Cord("payload"));
  EXPECT_EQ(Annotate(status, "stage 2").GetPayload("url"), absl::Cord("payload"));
}

TEST(Annotate, LeavesOkAlone) { EXPECT_EQ(Annotate(absl::OkStatus(), "x"), absl::OkStatus()); }

}  // namespace
}  // namespace stagecoach::base
