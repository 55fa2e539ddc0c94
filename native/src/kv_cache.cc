// Steps, and what chains take: claims by reference, by onloading and by copying, and new blocks.
// Whatever a copy reads or writes is held before a block is allocated for it: an allocation may
// evict, and what it evicts must not be the copy's other end.
#include "antiphon/kv_cache.h"

#include <algorithm>
#include <utility>

namespace antiphon {

KvCache::KvCache(const KvCacheConfig& config, ScopeTable* scopes)
    : config_(config),
      scopes_(scopes),
      device_(config.num_blocks),
      host_(config.num_host_blocks + 1),
      index_(config.num_blocks + config.num_host_blocks, config.block_tokens),
      order_(index_.max_nodes()),
      events_(config.num_kv_events),
      num_device_holds_(Index(config.num_blocks), 0),
      copied_into_(Index(config.num_blocks), -1),
      is_host_written_(Index(config.num_host_blocks + 1), false) {}

void KvCache::BeginStep(std::int64_t now_us, std::int32_t max_copies) {
  ANTIPHON_CHECK(holds_.empty());
  ++plan_;
  copies_.clear();
  max_copies_ = max_copies;
  order_.Advance(now_us);
}

StepHolds KvCache::TakeHolds() {
  ++plan_;  // copies that come later belong to a later step
  num_copy_changes_ += copies_.empty() ? 0 : 1;
  return std::exchange(holds_, {});
}

void KvCache::EndStep(StepHolds& holds) {
  for (const BlockId block : holds.device_blocks) {
    --num_device_holds_[Index(block)];
    DropReference(block);
  }
  num_copy_changes_ += holds.offloaded.empty() ? 0 : 1;
  for (const BlockId block : holds.offloaded) {
    is_host_written_[Index(block)] = false;
  }
  for (const BlockId block : holds.host_blocks) {
    if (host_.DropReference(block)) {
      RefreshCandidate(host_.node(block));
    }
  }
  holds = {};
}

std::int32_t KvCache::Claim(const PrefixMatch& match, BlockChain& chain) {
  ANTIPHON_CHECK(chain.blocks.empty());
  for (std::int32_t i = 0; i < match.num_device; ++i) {
    const NodeId node = match.nodes[Index(i)];
    Reference(node);
    chain.blocks.push_back(index_.block(node, Tier::kDevice));
    chain.tip = node;
  }
  chain.num_published = match.num_device;
  // Onloading one evicts another block, which must not displace those that come next.
  for (std::size_t i = Index(match.num_device); i < match.nodes.size(); ++i) {
    HoldHostBlock(index_.block(match.nodes[i], Tier::kHost));
  }
  if (match.partial == kNoNode) {
    return match.num_device * config_.block_tokens;
  }
  ClaimPartial(match, chain);
  return match.num_device * config_.block_tokens + match.partial_tokens;
}

bool KvCache::ClaimNext(BlockChain& chain, std::uint64_t hash, std::span<const TokenId> tokens) {
  ANTIPHON_CHECK(static_cast<std::int32_t>(chain.blocks.size()) == chain.num_published);
  const NodeId node = index_.Find(NextParent(chain), hash, tokens);
  if (node == kNoNode || !IsReadable(node)) {
    return false;
  }
  if (index_.is_on(node, Tier::kDevice)) {
    Reference(node);
    chain.blocks.push_back(index_.block(node, Tier::kDevice));
  } else {
    Onload(node, chain);
  }
  chain.tip = node;
  ++chain.num_published;
  return true;
}

void KvCache::Extend(BlockChain& chain, std::int32_t count) {
  ANTIPHON_CHECK(num_available() >= count);
  for (std::int32_t i = 0; i < count; ++i) {
    chain.blocks.push_back(TakeBlock(/*num_reserved_copies=*/0));
  }
}

void KvCache::DropReference(BlockId block) {
  if (device_.DropReference(block)) {
    order_.Touch(device_.node(block));
    RefreshCandidate(device_.node(block));
  }
}

bool KvCache::HasChild(ScopeId scope, NodeId node, std::uint64_t hash,
                       std::span<const TokenId> tokens) const {
  const ParentKey parent = node == kNoNode ? ParentKey::Root(scope) : ParentKey::Node(node);
  return index_.Find(parent, hash, tokens) != kNoNode;
}

ParentKey KvCache::NextParent(const BlockChain& chain) {
  return chain.tip == kNoNode ? ParentKey::Root(chain.scope) : ParentKey::Node(chain.tip);
}

void KvCache::ClaimPartial(const PrefixMatch& match, BlockChain& chain) {
  index_.AddHit(match.partial);
  chain.blocks.push_back(
      TakeCopyOf(ReadablePlace(match.partial), CopyKind::kOnWrite, match.partial_tokens));
  ++num_copies_on_write_;
}

void KvCache::Onload(NodeId node, BlockChain& chain) {
  index_.AddHit(node);
  const Place source = {.tier = Tier::kHost, .block = index_.block(node, Tier::kHost)};
  const BlockId block = TakeCopyOf(source, CopyKind::kOnload, config_.block_tokens);
  AttachDeviceBlock(node, block);
  chain.blocks.push_back(block);
  ++num_onloads_;
}

// Takes a device block into which this step copies the first `num_tokens` of another one.
BlockId KvCache::TakeCopyOf(Place source, CopyKind kind, std::int32_t num_tokens) {
  ANTIPHON_CHECK(num_copies_left() >= 1);
  if (source.tier == Tier::kDevice) {
    HoldDeviceBlock(source.block);
  } else {
    HoldHostBlock(source.block);
  }
  const BlockId block = TakeBlock(/*num_reserved_copies=*/1);
  HoldDeviceBlock(block);
  MarkCopiedInto(block);
  copies_.push_back({.kind = kind,
                     .source_tier = source.tier,
                     .source = source.block,
                     .destination = block,
                     .num_tokens = num_tokens});
  return block;
}

void KvCache::Reference(NodeId node) {
  index_.AddHit(node);
  if (device_.AddReference(index_.block(node, Tier::kDevice))) {
    order_.SetCandidate(node, Tier::kDevice, false);
  }
}

void KvCache::HoldDeviceBlock(BlockId block) {
  if (device_.AddReference(block)) {
    order_.SetCandidate(device_.node(block), Tier::kDevice, false);
  }
  ++num_device_holds_[Index(block)];
  holds_.device_blocks.push_back(block);
}

void KvCache::HoldHostBlock(BlockId block) {
  if (host_.AddReference(block)) {
    order_.SetCandidate(host_.node(block), Tier::kHost, false);
  }
  holds_.host_blocks.push_back(block);
}

}  // namespace antiphon
