// How the tiles of this thread are set.
#pragma once

#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace antiphon::kernels::amx {

inline constexpr int kTileRows = 16;
inline constexpr std::size_t kTileBytes = 1024;

enum class TileUse : int { kNone, kRowsOnTheLeft, kWeightsOnTheLeft };

struct TileState {
  TileUse use = TileUse::kNone;
  std::int64_t num_rows = 0;

  bool operator==(const TileState&) const = default;
};

inline constinit thread_local TileState tile_state = {};

struct TileShape {
  int rows;
  int row_bytes;
};

// Sets the tiles unless they are so already.
inline void set_tiles(const TileState& state, const std::array<TileShape, 8>& shapes) {
  struct alignas(64) Configuration {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };
  Configuration configuration;
  for (std::size_t tile = 0; tile < shapes.size(); ++tile) {
    configuration.rows[tile] = static_cast<std::uint8_t>(shapes[tile].rows);
    configuration.row_bytes[tile] = static_cast<std::uint16_t>(shapes[tile].row_bytes);
  }
  // GCC 12's own function tells the compiler of 8 bytes that are read only.
  __asm__ volatile("ldtilecfg %0" : : "m"(configuration));
  tile_state = state;
}

inline void release_tiles() {
  _tile_release();
  tile_state = {};
}

// The compiler isn't told that loads of tiles read memory: it may not put off stores beyond here.
__attribute__((always_inline)) inline void tiles_are_written() {
  __asm__ volatile("" : : : "memory");
}

}  // namespace antiphon::kernels::amx
