#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "antiphon/block_pool.h"
#include "antiphon/eviction_order.h"
#include "antiphon/kv_events.h"
#include "antiphon/prefix_index.h"
#include "antiphon/scope_table.h"
#include "antiphon/types.h"

namespace antiphon {

struct KvCacheConfig {
  std::int32_t num_blocks = 0;  // on the device, scratch included
  std::int32_t block_tokens = 0;
  std::int32_t num_host_blocks = 0;       // 0: no host tier
  bool prefix_reuse = true;               // without it nothing is ever published
  bool partial_reuse = true;              // blocks that are not full are published and matched too
  std::int32_t offload_min_priority = 0;  // blocks below it are dropped, not offloaded
  std::int32_t offload_min_hits = 0;      // so are those that were matched less often
  // What onloading costs, in tokens that could be prefilled meanwhile: once, and for each block.
  // A prefix on the host is recomputed where that is cheaper.
  std::int32_t onload_cost_tokens = 0;
  std::int32_t onload_block_cost_tokens = 0;
  std::int32_t num_kv_events = 0;               // that are kept for readers; 0: none
  std::int32_t fail_host_allocation_every = 0;  // a fault knob; 0: never
};

// The device blocks of one request, in order of position.
struct BlockChain {
  std::vector<BlockId> blocks;
  std::int32_t num_published = 0;   // leading blocks that are whole nodes of the index
  std::int32_t num_sent = 0;        // leading blocks that the device's block table has
  std::vector<std::int32_t> moved;  // indices below num_sent whose block has changed since
  NodeId tip = kNoNode;             // node of the last published block
  ScopeId scope = 0;
  Retention retention;
};

// A prefix found in the index.
struct PrefixMatch {
  std::vector<NodeId> nodes;    // whole blocks, from the root
  std::int32_t num_device = 0;  // leading ones that are in device memory; the rest are on the host
  std::int32_t num_live = 0;    // of those in device memory: referenced by a request
  // A block below the last node, of which the beginning is equal; none where num_host() > 0.
  NodeId partial = kNoNode;
  std::int32_t partial_tokens = 0;  // so many tokens of it
  bool pins_partial = false;        // its block is on the device and unreferenced

  void Clear() {
    nodes.clear();
    num_device = num_live = 0;
    DropPartial();
  }
  void DropPartial() {
    partial = kNoNode;
    partial_tokens = 0;
    pins_partial = false;
  }
  std::int32_t num_host() const { return static_cast<std::int32_t>(nodes.size()) - num_device; }
};

// Blocks that are held for the copies of one step, until it is committed.
struct StepHolds {
  std::vector<BlockId> device_blocks;
  std::vector<BlockId> host_blocks;
  std::vector<BlockId> offloaded;  // those of host_blocks that are being written

  bool empty() const { return device_blocks.empty() && host_blocks.empty(); }
};

// Pools and index as one: the cache of KV blocks that requests share, in device memory and, behind
// it, on the host.
//
// A block that must make room is offloaded if it may be (its content then lies on the host alone)
// and dropped if not. A match that reaches the host is onloaded into new device blocks; the host
// keeps its copy as long as it has room. Copies are described, never carried out.
//
// A block that is not full can be published too. Others that begin alike copy its beginning into a
// block of their own, so that no published position is ever written again.
//
// Invariants (beside those of its parts):
//  1. A device block's reference count is the number of chains and holds that name it.
//  2. The published part of a chain is a path of the index from its scope's root, and its blocks
//     are on the device. So an ancestor of a referenced node is referenced.
//  3. A node on the host alone has no descendant on the device.
//  4. A block is published only when its KV is computed, and matched on the host only when the
//     step that copies it there is committed.
//  5. Both ends of a copy are held until its step is committed; but the device block that an
//     offload reads may be written by that same step, since copies run first.
//
// Not thread-safe.
class KvCache {
 public:
  // `scopes` outlives the cache.
  KvCache(const KvCacheConfig& config, ScopeTable* scopes);

  // Starts a step: forgets the copies of the last, lets retentions run out, allows `max_copies`.
  // REQUIRES: the last step's holds were taken
  void BeginStep(std::int64_t now_us, std::int32_t max_copies);

  // The copies that this step needs so far, in the order in which they came about.
  std::span<const CopyOp> copies() const { return copies_; }
  std::int32_t num_copies_left() const {
    return max_copies_ - static_cast<std::int32_t>(copies_.size());
  }

  // What this step's copies hold; the caller gives it back with EndStep when the step is committed.
  // Takes nothing but what the cache put in.
  StepHolds TakeHolds();
  void EndStep(StepHolds& holds);

  // Finds the longest published prefix of `tokens`, of at most `max_tokens`. `hashes` has one entry
  // a whole block. Leaves out a host part that is cheaper to recompute. Changes nothing.
  // O(blocks found).
  void Match(ScopeId scope, std::span<const TokenId> tokens, std::span<const std::uint64_t> hashes,
             std::int32_t max_tokens, PrefixMatch& match) const;

  // Makes the device part of a match the start of an empty chain: its whole blocks, and, where no
  // host part lies between, the partial one, copied into a new block of the chain. Returns the
  // tokens claimed. The host part is held until the step is committed, so that ClaimNext finds all
  // of it.
  // REQUIRES: the cache has not changed since Match(); where a partial block is claimed,
  // num_available() >= 1 + pins_partial after the whole blocks are referenced, num_copies_left() >=
  // 1
  std::int32_t Claim(const PrefixMatch& match, BlockChain& chain);

  // Adds the published whole block that follows the chain's published part, if there is one that
  // holds `tokens`: by reference, or by onloading it into a new block. Returns whether it did.
  // REQUIRES: all blocks of the chain are published; num_available() >= 1; num_copies_left() >= 1
  bool ClaimNext(BlockChain& chain, std::uint64_t hash, std::span<const TokenId> tokens);

  // Adds `count` blocks to a chain; where no clean one is left, evicts the cached one of least
  // (priority, last use) that has none below it, again and again.
  // REQUIRES: num_available() >= count
  void Extend(BlockChain& chain, std::int32_t count);

  // Publishes the chain's next block, which holds `tokens`. Memory holds no prefix twice: where
  // that content is published already, a copy that nobody uses makes room for the chain's, and to
  // one that somebody uses the chain moves. Then the block that the chain had is returned with its
  // reference, and the caller drops it when no step in flight can touch it any more. Returns
  // kNoBlock if the chain keeps its block.
  // REQUIRES: the block is full and computed
  BlockId PublishNext(BlockChain& chain, std::uint64_t hash, std::span<const TokenId> tokens);

  // Publishes the beginning of the chain's next block, which holds `tokens` so far. The chain may
  // go on writing behind them. Does nothing where as long a beginning is published already.
  // REQUIRES: tokens are computed, at least one and less than a block
  void PublishPartial(const BlockChain& chain, std::span<const TokenId> tokens);

  void DropReference(BlockId block);

  // Lets go of all blocks, last first. `tokens` are the chain's computed ones, of which the first
  // `num_wanted` are worth keeping: whole blocks of them that are not published yet are, what lies
  // behind them and nobody else needs is forgotten, and the last block that is not full is
  // published as a partial one. What stays is cached under the chain's retention. Leaves an empty
  // chain of the same scope and retention: a second call changes nothing. Returns the node that the
  // last wanted token lies in, or the last before it that is published, or kNoNode.
  NodeId Release(BlockChain& chain, std::span<const TokenId> tokens, std::int32_t num_wanted);

  // Marks the path from `node` up to the first node that something else needs (other children,
  // another mark, a reference) as the first to be evicted; with `node` itself, partial children
  // that nothing needs.
  void Demote(NodeId node);

  // Counts a reason to keep a node and its path out of Demote's reach. A hint: eviction takes no
  // account of it, so that the caller tells by the node's uid whether it is still there.
  void AddMark(NodeId node) { index_.AddMark(node); }
  void DropMark(NodeId node) { index_.DropMark(node); }

  // Empties every cached block of both tiers and returns how many device blocks they were.
  std::int32_t Flush();

  // Where every whole block lies now, O(blocks log blocks).
  KvSnapshot Snapshot() const;

  // Whether the index has a child of `node` (kNoNode: of the scope's root) with these tokens.
  bool HasChild(ScopeId scope, NodeId node, std::uint64_t hash,
                std::span<const TokenId> tokens) const;

  // Grows whenever what Match() says of any text may have changed, or who references what it says.
  std::uint64_t num_changes() const {
    return index_.num_changes() + device_.num_transitions() + num_copy_changes_;
  }

  bool reuses_prefixes() const { return config_.prefix_reuse; }
  std::int32_t block_tokens() const { return config_.block_tokens; }
  // Device blocks that allocations can get: clean and cached ones.
  std::int32_t num_available() const { return device_.num_available(); }
  std::int64_t num_evictions() const { return num_evictions_; }
  std::int64_t num_offloads() const { return num_offloads_; }
  std::int64_t num_onloads() const { return num_onloads_; }
  std::int64_t num_copies_on_write() const { return num_copies_on_write_; }
  const BlockPool& device() const { return device_; }
  const BlockPool& host() const { return host_; }
  const PrefixIndex& index() const { return index_; }
  const EvictionOrder& order() const { return order_; }
  const KvEvents& events() const { return events_; }

  // Checks what pools and index must have in common, O(blocks).
  void CheckInvariants() const;

 private:
  // A child that begins like some tokens, and with how many of them.
  struct Beginning {
    NodeId node = kNoNode;
    std::int32_t num_tokens = 0;
  };

  struct Place {
    Tier tier;
    BlockId block;
  };

  // Children of one node that are looked at for how a text goes on inside a block, latest first.
  static constexpr std::int32_t kMaxScannedChildren = 64;

  static std::size_t Index(std::int32_t id) { return static_cast<std::size_t>(id); }
  static ParentKey NextParent(const BlockChain& chain);

  // kv_match.cc
  void MatchPartial(ScopeId scope, std::span<const TokenId> rest, PrefixMatch& match) const;
  Beginning LongestBeginning(ParentKey parent, std::span<const TokenId> tokens, NodeId except,
                             bool is_for_copy) const;
  bool IsReadable(NodeId node) const;
  bool IsWorthCopying(NodeId node, std::int32_t num_tokens) const;
  Place ReadablePlace(NodeId node) const;

  // kv_cache.cc
  void ClaimPartial(const PrefixMatch& match, BlockChain& chain);
  void Onload(NodeId node, BlockChain& chain);
  BlockId TakeCopyOf(Place source, CopyKind kind, std::int32_t num_tokens);
  void Reference(NodeId node);
  void HoldDeviceBlock(BlockId block);
  void HoldHostBlock(BlockId block);
  void MarkCopiedInto(BlockId block) { copied_into_[Index(block)] = plan_; }
  bool IsCopiedIntoNow(BlockId block) const { return copied_into_[Index(block)] == plan_; }

  // kv_publish.cc
  NodeId InsertNode(ParentKey parent, ScopeId scope, std::uint64_t hash,
                    std::span<const TokenId> tokens, BlockId block);
  void GrowNode(NodeId node, std::uint64_t hash, std::span<const TokenId> tokens);
  void AttachDeviceBlock(NodeId node, BlockId block);
  void PublishTail(const BlockChain& chain, BlockId block, std::span<const TokenId> tokens);
  void ForgetSuperseded(NodeId node);
  void PublishWanted(BlockChain& chain, std::span<const TokenId> wanted);
  void ForgetUnwanted(BlockChain& chain, std::size_t num_wanted);
  NodeId KeepTail(BlockChain& chain, std::span<const TokenId> wanted);
  bool IsNeededByOthers(NodeId node) const;

  // kv_tiers.cc
  BlockId TakeBlock(std::int32_t num_reserved_copies);
  void Evict(std::int32_t num_reserved_copies);
  NodeId FirstToEvict();
  bool Offload(NodeId node, std::int32_t num_reserved_copies);
  BlockId TakeHostBlock(std::int32_t level);
  void TakeOffDevice(NodeId node);
  void DropHostCopy(NodeId node);
  void RemoveNode(NodeId node);
  void RemoveSubtree(NodeId node);
  void UntieHeldBlocks();
  bool IsHeldByStepsAlone(NodeId node) const;
  bool IsNeeded(NodeId node) const;
  bool ChildrenAreNeeded(NodeId node) const;
  void RefreshCandidate(NodeId node);
  void RefreshParent(ParentKey parent);
  void Record(KvEventKind kind, NodeId node);
  KvEvent EventOf(KvEventKind kind, NodeId node) const;

  // kv_invariants.cc
  void CheckNode(NodeId node) const;
  void CheckTies() const;
  void CheckHolds() const;
  void CheckCopies() const;

  KvCacheConfig config_;
  ScopeTable* scopes_;
  BlockPool device_;
  BlockPool host_;
  PrefixIndex index_;
  EvictionOrder order_;
  KvEvents events_;

  std::int64_t plan_ = 0;  // counts the steps that were begun and those whose copies are settled
  std::vector<CopyOp> copies_;
  std::int32_t max_copies_ = 0;
  StepHolds holds_;
  std::vector<std::int32_t> num_device_holds_;  // by device block: of its references, steps'
  std::vector<std::int64_t> copied_into_;       // by device block: plan_ at the last copy to it
  std::vector<bool> is_host_written_;           // by host block: its offload is not yet committed

  std::uint64_t num_copy_changes_ = 0;  // of what can be read, for copies that are due or done
  std::int64_t num_host_allocations_ = 0;
  std::int64_t num_evictions_ = 0;
  std::int64_t num_offloads_ = 0;
  std::int64_t num_onloads_ = 0;
  std::int64_t num_copies_on_write_ = 0;
};

}  // namespace antiphon
