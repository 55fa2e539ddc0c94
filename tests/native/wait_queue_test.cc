#include "antiphon/wait_queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace antiphon {
namespace {

Request MakeRequest(Handle handle, std::int32_t priority, std::uint64_t arrival) {
  Request request;
  request.handle = handle;
  request.priority = priority;
  request.arrival = arrival;
  return request;
}

TEST(WaitQueue, OrdersByPriorityThenByArrivalWhateverTheOrderOfAdding) {
  const std::vector<Request> requests = {MakeRequest(1, 50, 4), MakeRequest(2, 60, 3),
                                         MakeRequest(3, -7, 1), MakeRequest(4, 50, 2)};
  WaitQueue queue;
  for (const Request& request : requests) {
    queue.Add(request);
  }

  std::vector<Handle> order;
  for (auto place = queue.begin(); place != queue.end();) {
    const Handle handle = place->handle;
    ++place;  // stays good when the one before it goes
    order.push_back(handle);
    queue.Remove(requests[handle - 1]);
  }

  EXPECT_EQ(order, (std::vector<Handle>{2, 4, 1, 3}));
  EXPECT_TRUE(queue.empty());
}

TEST(WaitQueue, RemovingWhatIsNotThereChangesNothing) {
  WaitQueue queue;
  const Request request = MakeRequest(1, 50, 1);
  queue.Add(request);

  queue.Remove(MakeRequest(2, 50, 2));

  EXPECT_EQ(queue.size(), 1U);
  EXPECT_TRUE(queue.Contains(request));
}

TEST(WaitQueue, RefusesARequestTwice) {
  WaitQueue queue;
  const Request request = MakeRequest(1, 50, 1);
  queue.Add(request);

  EXPECT_THROW(queue.Add(request), InvariantError);
}

}  // namespace
}  // namespace antiphon
