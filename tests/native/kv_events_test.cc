#include "antiphon/kv_events.h"

#include <gtest/gtest.h>

#include <map>

#include "kv_cache_fixture.h"

namespace antiphon {
namespace {

KvEvent Stored(std::uint64_t path_hash) {
  KvEvent event;
  event.path_hash = path_hash;
  return event;
}

TEST(KvEvents, AreNumberedFromOne) {
  KvEvents events(4);
  events.Append(Stored(10));
  events.Append(Stored(20));

  const KvEventBatch batch = events.Read(0, 10);

  ASSERT_EQ(batch.events.size(), 2U);
  EXPECT_EQ(batch.events[0].sequence, 1);
  EXPECT_EQ(batch.events[1].path_hash, 20U);
  EXPECT_FALSE(batch.lost);
  EXPECT_EQ(events.last_sequence(), 2);
}

TEST(KvEvents, AReaderGoesOnWhereItStopped) {
  KvEvents events(4);
  for (std::uint64_t hash = 1; hash <= 3; ++hash) {
    events.Append(Stored(hash));
  }

  EXPECT_EQ(events.Read(0, 2).events.size(), 2U);
  EXPECT_EQ(events.Read(2, 2).events.size(), 1U);
  EXPECT_EQ(events.Read(2, 2).events[0].path_hash, 3U);
  EXPECT_TRUE(events.Read(3, 2).events.empty());
  EXPECT_FALSE(events.Read(3, 2).lost);
}

TEST(KvEvents, AReaderThatIsTooLateIsTold) {
  KvEvents events(3);
  for (std::uint64_t hash = 1; hash <= 5; ++hash) {
    events.Append(Stored(hash));
  }

  EXPECT_FALSE(events.Read(2, 10).lost);
  EXPECT_TRUE(events.Read(1, 10).lost);
  ASSERT_EQ(events.Read(1, 10).events.size(), 3U);
  EXPECT_EQ(events.Read(1, 10).events[0].sequence, 3);
}

TEST(KvEvents, AReaderOfAnotherRunIsTold) {
  KvEvents events(3);
  events.Append(Stored(1));

  const KvEventBatch batch = events.Read(7, 10);

  EXPECT_TRUE(batch.lost);
  EXPECT_EQ(batch.events.size(), 1U);
}

TEST(KvEvents, WithoutRoomNothingIsRecorded) {
  KvEvents events(0);
  events.Append(Stored(1));

  EXPECT_FALSE(events.enabled());
  EXPECT_EQ(events.last_sequence(), 0);
  EXPECT_TRUE(events.Read(0, 10).events.empty());
}

// What a reader knows: where each prefix lies.
using View = std::map<std::uint64_t, std::uint32_t>;

class KvCacheEventsTest : public KvCacheFixture {
 protected:
  void SetUp() override { Open(Config(/*num_blocks=*/4, /*num_host_blocks=*/3)); }

  std::vector<KvEvent> NewEvents() {
    const KvEventBatch batch = cache_->events().Read(last_read_, 1000);
    EXPECT_FALSE(batch.lost);
    last_read_ = cache_->events().last_sequence();
    return batch.events;
  }

  std::int64_t last_read_ = 0;
};

TEST_F(KvCacheEventsTest, Fault24_EachChangeIsToldOnceAndRemovalWithTheLastCopy) {
  const std::uint64_t root = scopes_.hash(Scope());
  const std::vector<std::uint64_t> paths = PathHashes(root, kAB, kBlockTokens);
  const auto event = [&](KvEventKind kind, std::size_t index, std::uint32_t tiers) {
    return KvEvent{.sequence = last_read_ + 1,
                   .kind = kind,
                   .path_hash = paths[index],
                   .parent_hash = index == 0 ? root : paths[index - 1],
                   .scope = Scope(),
                   .tiers = tiers,
                   .priority = 70};
  };
  using Events = std::vector<KvEvent>;

  Events expected = {event(KvEventKind::kStored, 0, 1), event(KvEventKind::kStored, 1, 1)};
  expected[1].sequence = 2;
  Cache(kAB, {.priority = 70});
  EXPECT_EQ(NewEvents(), expected);

  expected = {event(KvEventKind::kMoved, 1, 2)};
  Evict(1);
  EXPECT_EQ(NewEvents(), expected);
  NextStep();

  expected = {event(KvEventKind::kMoved, 1, 3)};
  BlockChain chain = NewChain();
  Start(chain, kAB);
  EXPECT_EQ(NewEvents(), expected);
  cache_->Release(chain, kAB, kKeepAll);
  NextStep();
  EXPECT_TRUE(NewEvents().empty());

  expected = {event(KvEventKind::kRemoved, 1, 0), event(KvEventKind::kRemoved, 0, 0)};
  expected[1].sequence = last_read_ + 2;
  cache_->Flush();
  EXPECT_EQ(NewEvents(), expected);
}

TEST_F(KvCacheEventsTest, BlocksThatAreNotFullAreNoEvents) {
  Cache({1, 2, 3});

  EXPECT_TRUE(NewEvents().empty());
}

TEST_F(KvCacheEventsTest, ABlockThatFillsUpIsStored) {
  BlockChain chain = Compute({1, 2, 3});
  cache_->PublishPartial(chain, Tokens{1, 2, 3});
  Publish(chain, kA);

  const std::vector<KvEvent> events = NewEvents();

  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].kind, KvEventKind::kStored);
}

TEST_F(KvCacheEventsTest, PublishingWhatIsThereIsNoChange) {
  Cache(kA);
  NewEvents();

  Cache(kA);

  EXPECT_TRUE(NewEvents().empty());
}

TEST_F(KvCacheEventsTest, ASnapshotIsWhereEverythingLiesParentsFirst) {
  Cache(kAB);
  Evict(1);
  NextStep();
  Cache({9, 9, 9, 9});

  const KvSnapshot snapshot = cache_->Snapshot();

  EXPECT_EQ(snapshot.sequence, cache_->events().last_sequence());
  ASSERT_EQ(snapshot.blocks.size(), 3U);
  EXPECT_EQ(snapshot.blocks[1].parent_hash, snapshot.blocks[0].path_hash);
  EXPECT_EQ(snapshot.blocks[0].tiers, 1U);
  EXPECT_EQ(snapshot.blocks[1].tiers, 2U);
  EXPECT_EQ(snapshot.blocks[2].tiers, 1U);
}

}  // namespace
}  // namespace antiphon
