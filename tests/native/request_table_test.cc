#include "antiphon/request_table.h"

#include <gtest/gtest.h>

namespace antiphon {
namespace {

TEST(RequestTable, HandleIsNeverZeroAndFindsItsRequest) {
  RequestTable table(2);

  Request& request = table.Add();

  EXPECT_NE(request.handle, 0U);
  EXPECT_EQ(table.Find(request.handle), &request);
  EXPECT_EQ(table.Find(0), nullptr);
}

TEST(RequestTable, LateHandleFindsNothingAfterItsPlaceIsUsedAgain) {
  RequestTable table(1);
  Request& first = table.Add();
  const Handle late = first.handle;
  table.Remove(first);

  const Request& second = table.Add();

  EXPECT_EQ(&second, &first);
  EXPECT_NE(second.handle, late);
  EXPECT_EQ(table.Find(late), nullptr);
  table.CheckInvariants();
}

TEST(RequestTable, MadeUpHandlesFindNothing) {
  RequestTable table(2);
  const Handle handle = table.Add().handle;

  EXPECT_EQ(table.Find(handle + 1), nullptr);
  EXPECT_EQ(table.Find(handle + (1ULL << 32)), nullptr);
  EXPECT_EQ(table.Find(~0ULL), nullptr);
}

TEST(RequestTable, IsFullAtItsLimit) {
  RequestTable table(2);
  table.Add();
  table.Add();

  EXPECT_THROW(table.Add(), QueueFullError);
  EXPECT_EQ(table.num_requests(), 2);
}

TEST(RequestTable, RefusesToRemoveARequestThatHoldsSomething) {
  RequestTable table(1);
  Request& request = table.Add();
  request.slot = 0;

  EXPECT_THROW(table.Remove(request), InvariantError);
}

TEST(RequestTable, CountsOutputAndSettledTokens) {
  Request request;
  request.tokens = {1, 2, 3, 4};
  request.num_prompt = 3;
  request.num_computed = 3;
  request.num_inflight = 2;

  EXPECT_EQ(request.num_output(), 1);
  EXPECT_EQ(request.num_settled(), 1);
}

}  // namespace
}  // namespace antiphon
