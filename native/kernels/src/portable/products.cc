// For any machine: plain loops, float32.
#include "../bfloat16.h"
#include "../finish_rows.h"
#include "../float_products.h"
#include "../product_kernels.h"
#include "../quantization.h"
#include "../slice_codec.h"
#include "vector_math.h"

namespace antiphon::kernels {
namespace {

template <WeightFormat format>
void unpack_integers(const Unpacking& work) {
  const std::byte* block = work.blocks;
  auto* tile = static_cast<float*>(work.tiles);
  for (std::int64_t slice = 0; slice < work.num_slices; ++slice) {
    for (int output = 0; output < kPair; ++output) {
      const int half = output / kPanel;
      const int channel = output % kPanel;
      const QuantizedSlice weights = load_slice(
          {const_cast<std::byte*>(block), format, IntegerLayout::kLanesAreOutputs, half, channel},
          work.row_scales[output]);
      for (int k = 0; k < kSlice; ++k) {
        tile[half * kTile + k * kPanel + channel] = value_of(weights, format, k);
      }
    }
    block += block_bytes(format);
    tile += 2 * kTile;
  }
}

void unpack_bf16(const Unpacking& work) {
  const auto* const weights = reinterpret_cast<const std::uint16_t*>(work.blocks);
  auto* const tiles = static_cast<float*>(work.tiles);
  for (std::int64_t i = 0; i < work.num_slices * 2 * kTile; ++i) {
    tiles[i] = from_bf16(weights[i]);
  }
}

constexpr ProductKernels kKernels = {
    Type::kF32,
    {nullptr, unpack_bf16, unpack_integers<WeightFormat::kInt8>,
     unpack_integers<WeightFormat::kInt6>, unpack_integers<WeightFormat::kInt5>,
     unpack_integers<WeightFormat::kInt4>},
    float_products::multiply<portable::FloatVector, 1>,
    finishing::finish_rows<portable::FloatVector>,
    [](std::int64_t) {},
    [] {},
};

}  // namespace

const ProductKernels& portable_kernels() { return kKernels; }

}  // namespace antiphon::kernels
