#include "antiphon/kernels/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bfloat16.h"
#include "gguf_blocks.h"
#include "huge_pages.h"
#include "product_kernels.h"
#include "quantization.h"
#include "rounding.h"
#include "slice_codec.h"
#include "tile_layout.h"

namespace antiphon::kernels {
namespace {

std::int64_t pairs_of(std::int64_t num_out, RowOrder order) {
  return order == RowOrder::kGateUp ? divide_up(num_out / 2, kPanel) : divide_up(num_out, kPair);
}

void check_shape(std::int64_t num_out, std::int64_t num_in, RowOrder order) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  if (num_out < 1 || num_in < 1 || num_out > kMost || num_in > kMost) {
    throw std::invalid_argument("a matrix of " + std::to_string(num_out) + " x " +
                                std::to_string(num_in) + " can't be packed; sizes are from 1 to " +
                                std::to_string(kMost));
  }
  if (order == RowOrder::kGateUp && num_out % 2 != 0) {
    throw std::invalid_argument("gates and ups are equally many, but there are " +
                                std::to_string(num_out) + " rows");
  }
}

}  // namespace

PackedMatrix::PackedMatrix(std::int64_t num_out, std::int64_t num_in, WeightFormat format,
                           RowOrder order, Isa isa)
    : num_out_(num_out),
      num_in_(num_in),
      format_(format),
      order_(order),
      isa_(isa),
      num_pairs_(pairs_of(num_out, order)),
      num_slices_(divide_up(num_in, kSlice)),
      block_bytes_(kernels::block_bytes(format)),
      num_bytes_(packed_bytes(num_out, num_in, format, order)),
      bytes_(map_zeros(num_bytes_)),
      row_scales_(static_cast<std::size_t>(num_pairs_ * kPair), 1.0F) {
  if (!has(isa)) {
    throw std::invalid_argument(std::string("this machine has no ") + name(isa) + "; at best " +
                                name(best_isa()));
  }
}

std::size_t PackedMatrix::packed_bytes(std::int64_t num_out, std::int64_t num_in,
                                       WeightFormat format, RowOrder order) {
  check_shape(num_out, num_in, order);
  return static_cast<std::size_t>(pairs_of(num_out, order) * divide_up(num_in, kSlice)) *
         kernels::block_bytes(format);
}

Type PackedMatrix::input_type() const { return product_kernels(isa_, format_).input_type; }

PackedMatrix::Place PackedMatrix::place_of(std::int64_t row) const {
  if (order_ == RowOrder::kPlain) {
    return {row / kPair, static_cast<int>(row % kPair / kPanel), static_cast<int>(row % kPanel)};
  }
  const std::int64_t num_gates = num_out_ / 2;
  const int half = row < num_gates ? 0 : 1;
  const std::int64_t index = row - half * num_gates;
  return {index / kPanel, half, static_cast<int>(index % kPanel)};
}

void PackedMatrix::check_rows(std::int64_t first_row, std::int64_t num_rows) const {
  if (first_row < 0 || num_rows < 0 || first_row > num_out_ - num_rows) {
    throw std::invalid_argument("rows " + std::to_string(first_row) + " to " +
                                std::to_string(first_row + num_rows) + " of a matrix of " +
                                std::to_string(num_out_));
  }
}

IntegerLayout PackedMatrix::layout() const { return product_kernels(isa_, format_).layout; }

namespace {

float largest_finite(const float* weights, std::int64_t count) {
  float largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const float magnitude = std::abs(weights[i]);
    if (magnitude > largest && std::isfinite(magnitude)) {
      largest = magnitude;
    }
  }
  return largest;
}

// Integers become pairs when they are unpacked.
TileOrder order_of(WeightFormat format, Type input_type) {
  return format == WeightFormat::kBf16 && input_type == Type::kBf16 ? TileOrder::kPairs
                                                                    : TileOrder::kChannels;
}

// A slice of a row of one type into one of another, zeros behind the row's end.
template <class Element, class Source, class Convert>
void store_column(Element* tile, TileOrder order, int channel, const Source* weights,
                  std::int64_t count, Convert convert) {
  for (int parity = 0; parity < 2; ++parity) {
    const Column column = column_of(order, channel, parity);
    for (int p = 0; p < kSlice / 2; ++p) {
      const int k = 2 * p + parity;
      tile[index_of(column, p)] = k < count ? convert(weights[k]) : Element{0};
    }
  }
}

}  // namespace

void PackedMatrix::pack_row(std::int64_t row, const float* weights) {
  const Place place = place_of(row);
  const TileOrder order = order_of(format_, input_type());
  const float row_scale = row_scale_for(largest_finite(weights, num_in_));
  row_scales_[place.pair * kPair + place.half * kPanel + place.channel] = row_scale;
  std::byte* block = bytes_.get() + place.pair * pair_bytes();
  for (std::int64_t first = 0; first < num_in_; first += kSlice, block += block_bytes_) {
    const std::int64_t count = std::min<std::int64_t>(kSlice, num_in_ - first);
    std::byte* const tile = tile_weights(block, format_, place.half);
    if (format_ == WeightFormat::kF32) {
      store_column(reinterpret_cast<float*>(tile), order, place.channel, weights + first, count,
                   [](float value) { return value; });
    } else if (format_ == WeightFormat::kBf16) {
      store_column(reinterpret_cast<std::uint16_t*>(tile), order, place.channel, weights + first,
                   count, to_bf16);
    } else {
      float slice[kSlice] = {};
      std::copy_n(weights + first, count, slice);
      store_slice({block, format_, layout(), place.half, place.channel},
                  quantize(slice, format_, row_scale), row_scale);
    }
  }
}

void PackedMatrix::pack_bf16_row(std::int64_t row, const std::uint16_t* weights) {
  const Place place = place_of(row);
  const TileOrder order = order_of(format_, input_type());
  std::byte* block = bytes_.get() + place.pair * pair_bytes();
  for (std::int64_t first = 0; first < num_in_; first += kSlice, block += block_bytes_) {
    store_column(reinterpret_cast<std::uint16_t*>(tile_weights(block, format_, place.half)), order,
                 place.channel, weights + first, std::min<std::int64_t>(kSlice, num_in_ - first),
                 [](std::uint16_t value) { return value; });
  }
}

void PackedMatrix::pack_f32(std::int64_t first_row, std::int64_t num_rows, const float* rows) {
  check_rows(first_row, num_rows);
  for (std::int64_t i = 0; i < num_rows; ++i) {
    pack_row(first_row + i, rows + i * num_in_);
  }
}

void PackedMatrix::pack_bf16(std::int64_t first_row, std::int64_t num_rows,
                             const std::uint16_t* rows) {
  check_rows(first_row, num_rows);
  std::vector<float> wide(static_cast<std::size_t>(num_in_));
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const std::uint16_t* const row = rows + i * num_in_;
    if (format_ == WeightFormat::kBf16) {
      pack_bf16_row(first_row + i, row);
    } else {
      std::transform(row, row + num_in_, wide.begin(), from_bf16);
      pack_row(first_row + i, wide.data());
    }
  }
}

void PackedMatrix::pack_gguf(std::int64_t first_row, std::int64_t num_rows, GgufType type,
                             const std::byte* rows) {
  check_rows(first_row, num_rows);
  const WeightFormat kept = gguf_format(type);
  const std::size_t row_bytes = gguf_row_bytes(type, num_in_);
  const GgufBlock block = gguf_block(type);
  std::vector<QuantizedSlice> slices(static_cast<std::size_t>(num_slices_));
  std::vector<float> wide(static_cast<std::size_t>(num_slices_ * kSlice));
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const std::byte* source = rows + static_cast<std::size_t>(i) * row_bytes;
    for (std::int64_t k = 0; k < num_in_; k += block.num_weights, source += block.num_bytes) {
      read_gguf_block(type, source, &slices[k / kSlice]);
    }
    if (kept == format_) {
      pack_slices(first_row + i, slices);
    } else {
      for (std::int64_t k = 0; k < num_in_; ++k) {
        wide[k] = value_of(slices[k / kSlice], kept, static_cast<int>(k % kSlice));
      }
      pack_row(first_row + i, wide.data());
    }
  }
}

void PackedMatrix::pack_slices(std::int64_t row, const std::vector<QuantizedSlice>& slices) {
  const Place place = place_of(row);
  float largest = 0;
  for (const QuantizedSlice& slice : slices) {
    const float scales[] = {slice.scales[0], slice.scales[1], slice.offset};
    largest = std::max(largest, largest_finite(scales, 3));
  }
  const float row_scale = row_scale_for(largest);
  row_scales_[place.pair * kPair + place.half * kPanel + place.channel] = row_scale;
  std::byte* block = bytes_.get() + place.pair * pair_bytes();
  for (const QuantizedSlice& slice : slices) {
    store_slice({block, format_, layout(), place.half, place.channel}, slice, row_scale);
    block += block_bytes_;
  }
}

void PackedMatrix::unpack_row(std::int64_t row, float* out) const {
  check_rows(row, 1);
  const Place place = place_of(row);
  const TileOrder order = order_of(format_, input_type());
  // Products of integers become no bfloat16.
  const bool cuts = input_type() == Type::kBf16 && layout() != IntegerLayout::kQuads;
  const float row_scale = row_scales_[place.pair * kPair + place.half * kPanel + place.channel];
  std::byte* block = bytes_.get() + place.pair * pair_bytes();
  for (std::int64_t first = 0; first < num_in_; first += kSlice, block += block_bytes_) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kSlice, num_in_ - first));
    const std::byte* const tile = tile_weights(block, format_, place.half);
    QuantizedSlice slice = {};
    if (format_ != WeightFormat::kF32 && format_ != WeightFormat::kBf16) {
      slice = load_slice({block, format_, layout(), place.half, place.channel}, row_scale);
    }
    for (int k = 0; k < count; ++k) {
      const int index = index_of(column_of(order, place.channel, k % 2), k / 2);
      if (format_ == WeightFormat::kF32) {
        out[first + k] = reinterpret_cast<const float*>(tile)[index];
      } else if (format_ == WeightFormat::kBf16) {
        out[first + k] = from_bf16(reinterpret_cast<const std::uint16_t*>(tile)[index]);
      } else {
        out[first + k] = cuts ? cut_value_of(slice, format_, k) : value_of(slice, format_, k);
      }
    }
  }
}

}  // namespace antiphon::kernels
