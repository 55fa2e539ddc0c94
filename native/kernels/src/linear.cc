#include "antiphon/kernels/linear.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "antiphon/kernels/thread_team.h"
#include "bfloat16.h"
#include "product_kernels.h"
#include "rounding.h"

namespace antiphon::kernels {
namespace {

constexpr std::int64_t kRowsOfTask = 512;       // their sums of a pair fill a small part of a cache
constexpr std::int64_t kChunkBytes = 64 << 10;  // of tiles, to stay in the nearer caches
constexpr std::int64_t kNearBytes = 1 << 20;    // of rows, to stay in the second
constexpr std::int64_t kMostPairs = 8;
constexpr std::int64_t kLeastSlices = 4;  // of tiles, for what unpacks and multiplies at once
// With few rows: so many that an op's end waits for little, and no more, for each is claimed.
constexpr std::int64_t kFewRowsTasks = 32;  // of a worker

// How the product is cut. A task is some pairs of some rows. Within it, a group of pairs is
// multiplied chunk by chunk of the inputs, so that the rows' chunk is near for all of the group.
struct Cut {
  std::int64_t rows_of_task;
  std::int64_t num_row_tasks;
  std::int64_t pairs_of_task;
  std::int64_t num_pair_tasks;
  std::int64_t pairs_of_group;
  std::int64_t slices_of_chunk;

  std::int64_t num_tasks() const { return num_row_tasks * num_pair_tasks; }
};

// A product of many rows, and what its parts take beside the multiplication: in rows of a pair that
// would be multiplied meanwhile. Each task of the same weights fetches them anew.
struct ManyRows {
  std::int64_t num_rows;
  std::int64_t num_pairs;
  std::int64_t fetching;  // a pair's weights
  double reading;         // a row, for each group of pairs
  std::int64_t num_workers;
};

// Until the last worker is done, with tasks of `pairs` by `rows`. Some of a task is added, for
// workers aren't equally fast, and at the end the others wait for one.
double time_of(const ManyRows& product, std::int64_t pairs, std::int64_t rows) {
  const std::int64_t num_tasks =
      divide_up(product.num_pairs, pairs) * divide_up(product.num_rows, rows);
  const std::int64_t num_rounds = divide_up(num_tasks, product.num_workers);
  const double task = static_cast<double>(pairs * (rows + product.fetching)) +
                      static_cast<double>(rows) * product.reading;
  return task * (static_cast<double>(num_rounds) + 0.25);
}

void cut_many_rows(const ManyRows& product, std::int64_t most_pairs, Cut& cut) {
  const std::int64_t num_row_tasks = divide_up(product.num_rows, kRowsOfTask);
  std::int64_t rows = round_up(divide_up(product.num_rows, num_row_tasks), kFewRows);
  double least = std::numeric_limits<double>::infinity();
  for (;;) {
    for (std::int64_t pairs = 1; pairs <= most_pairs; ++pairs) {
      const double time = time_of(product, pairs, rows);
      if (time < least) {
        least = time;
        cut.rows_of_task = rows;
        cut.pairs_of_group = pairs;
      }
    }
    if (rows <= 2 * kFewRows) {
      return;
    }
    rows = round_up(rows / 2, kFewRows);
  }
}

// How the product is cut changes no result, so it may look at all there is.
Cut cut(const PackedMatrix& weights, const ProductKernels& kernels, std::int64_t num_rows,
        int num_workers) {
  const std::int64_t element = element_bytes(kernels.input_type);
  const auto format = static_cast<std::size_t>(weights.format());
  const bool unpacks = kernels.unpack[format] != nullptr;
  const bool at_once = kernels.unpack_and_multiply[format] != nullptr;
  const bool few = num_rows <= kFewRows;
  Cut cut = {};
  if (few) {
    cut.rows_of_task = num_rows;
    cut.pairs_of_group = 1;
    cut.pairs_of_task = std::clamp<std::int64_t>(
        weights.num_pairs() / (kFewRowsTasks * num_workers), 1, kMostPairs);
  } else {
    constexpr std::int64_t kUnpacking = 64;
    // Rows that stay in the second cache are near for every pair; others come from further away.
    constexpr double kNear = 0.05;
    constexpr double kFar = 0.4;
    const std::int64_t row_bytes = weights.num_slices() * kSlice * element;
    const bool near = std::min(num_rows, kRowsOfTask) * row_bytes <= kNearBytes;
    const ManyRows product = {num_rows, weights.num_pairs(),
                              unpacks ? kUnpacking : kernels.rows_of_fetching, near ? kNear : kFar,
                              num_workers};
    cut_many_rows(product, near ? kMostPairs / 2 : kMostPairs, cut);
    cut.pairs_of_task = cut.pairs_of_group;
  }
  cut.num_row_tasks = divide_up(num_rows, cut.rows_of_task);
  cut.num_pair_tasks = divide_up(weights.num_pairs(), cut.pairs_of_task);
  cut.slices_of_chunk = weights.num_slices();
  if ((unpacks && !at_once) || !few) {
    const std::int64_t most = kChunkBytes / (2 * kTile * element);
    cut.slices_of_chunk = divide_up(weights.num_slices(), divide_up(weights.num_slices(), most));
  }
  return cut;
}

// A worker's part of one product.
class Share {
 public:
  Share(Worker& worker, const PackedMatrix& weights, const Rows& in, const float* bias,
        Epilogue epilogue, const RowsOut& out, std::int64_t out_column)
      : weights_(weights),
        kernels_(product_kernels(weights.isa(), weights.format())),
        at_once_(in.num_rows <= kernels_.most_rows_at_once
                     ? kernels_.unpack_and_multiply[static_cast<std::size_t>(weights.format())]
                     : nullptr),
        cut_(cut(weights, kernels_, in.num_rows, worker.count())),
        in_(in),
        bias_(bias),
        epilogue_(epilogue),
        out_(out),
        out_column_(out_column) {
    const std::int64_t element = element_bytes(kernels_.input_type);
    const std::int64_t tiles =
        std::max<std::int64_t>(cut_.slices_of_chunk, kLeastSlices) * 2 * kTile * element;
    const std::int64_t sums =
        cut_.pairs_of_group * cut_.rows_of_task * kPair * static_cast<std::int64_t>(sizeof(float));
    const bool any_type = at_once_ != nullptr && kernels_.arranges_any_type;
    const bool staged =
        (in.type != kernels_.input_type && !any_type) || weights.num_in() % kSlice != 0;
    const std::int64_t width = weights.num_slices() * kSlice;
    const std::int64_t rows = staged ? in.num_rows * width * element : 0;
    const std::int64_t arranged =
        at_once_ != nullptr
            ? arranged_rows(in.num_rows) * weights.num_slices() * kernels_.arranged_bytes
            : 0;
    const std::int64_t marks = at_once_ != nullptr ? cut_.num_row_tasks : 0;
    std::byte* const scratch =
        worker.scratch(static_cast<std::size_t>(tiles + sums + arranged + rows + marks));
    tiles_ = scratch;
    sums_ = reinterpret_cast<float*>(scratch + tiles);
    arranged_ = scratch + tiles + sums;
    is_arranged_ = arranged_ + arranged + rows;
    std::fill_n(is_arranged_, marks, std::byte{0});
    if (staged) {
      stage(arranged_ + arranged, width);
    }
  }

  void run(TaskCursor& cursor) {
    std::int64_t task = cursor.next();
    if (task >= cut_.num_tasks()) {
      return;
    }
    kernels_.begin(cut_.rows_of_task);
    while (task < cut_.num_tasks()) {
      // Taken before this one is done, so that its first weights can be asked for meanwhile.
      const std::int64_t next_task = cursor.next();
      // Rows of the same pairs follow each other: their weights are near then.
      run_task(task / cut_.num_row_tasks, task % cut_.num_row_tasks,
               next_task < cut_.num_tasks() ? first_chunk_of(next_task / cut_.num_row_tasks)
                                            : Upcoming{});
      task = next_task;
    }
    kernels_.end();
  }

 private:
  // Rows as the kernels take them: of their type, filled up to whole slices with zeros.
  void stage(std::byte* target, std::int64_t width) {
    for (std::int64_t row = 0; row < in_.num_rows; ++row) {
      for (std::int64_t k = 0; k < width; ++k) {
        float value = 0;
        if (k < weights_.num_in()) {
          const std::int64_t index = row * in_.stride + k;
          value = in_.type == Type::kF32
                      ? static_cast<const float*>(in_.data)[index]
                      : from_bf16(static_cast<const std::uint16_t*>(in_.data)[index]);
        }
        if (kernels_.input_type == Type::kF32) {
          reinterpret_cast<float*>(target)[row * width + k] = value;
        } else {
          reinterpret_cast<std::uint16_t*>(target)[row * width + k] = to_bf16(value);
        }
      }
    }
    in_ = {target, kernels_.input_type, in_.num_rows, width};
  }

  // A row's arranged slices; of few rows that lie otherwise, all begin with the first one's.
  std::byte* arranged_at(std::int64_t row, std::int64_t slice) const {
    return arranged_ + (row * weights_.num_slices() + slice) * kernels_.arranged_bytes;
  }

  void arrange(std::int64_t first_row, std::int64_t num_rows) const {
    const std::int64_t element = element_bytes(in_.type);
    kernels_.arrange({static_cast<const std::byte*>(in_.data) + first_row * in_.stride * element,
                      in_.type, in_.stride, num_rows, weights_.num_slices(),
                      arranged_at(first_row, 0)});
  }

  struct Place {
    std::int64_t pair;
    std::int64_t slice;
    std::int64_t first_row;
    std::int64_t num_rows;
  };

  void run_task(std::int64_t pair_task, std::int64_t row_task, const Upcoming& behind) {
    const std::int64_t first_row = row_task * cut_.rows_of_task;
    const std::int64_t num_rows = std::min(cut_.rows_of_task, in_.num_rows - first_row);
    if (at_once_ != nullptr && is_arranged_[row_task] == std::byte{0}) {
      arrange(first_row, num_rows);
      is_arranged_[row_task] = std::byte{1};
    }
    const std::int64_t first = pair_task * cut_.pairs_of_task;
    const std::int64_t end = std::min(first + cut_.pairs_of_task, weights_.num_pairs());
    for (std::int64_t group = first; group < end; group += cut_.pairs_of_group) {
      const std::int64_t group_end = std::min(group + cut_.pairs_of_group, end);
      for (std::int64_t slice = 0; slice < weights_.num_slices(); slice += cut_.slices_of_chunk) {
        for (std::int64_t pair = group; pair < group_end; ++pair) {
          Upcoming upcoming = behind;
          if (pair + 1 < group_end) {
            upcoming = chunk(pair + 1, slice);
          } else if (slice + cut_.slices_of_chunk < weights_.num_slices()) {
            upcoming = chunk(group, slice + cut_.slices_of_chunk);
          } else if (group_end < end) {
            upcoming = chunk(group_end, 0);
          }
          multiply(chunk(pair, slice), {pair, slice, first_row, num_rows}, upcoming,
                   sums_of(pair - group));
        }
      }
      for (std::int64_t pair = group; pair < group_end; ++pair) {
        finish(pair, first_row, num_rows, sums_of(pair - group));
      }
    }
  }

  // Slices of a pair that are multiplied at once.
  Upcoming chunk(std::int64_t pair, std::int64_t slice) const {
    const std::int64_t num_slices = std::min(cut_.slices_of_chunk, weights_.num_slices() - slice);
    const auto block_bytes = static_cast<std::int64_t>(weights_.block_bytes());
    return {weights_.pair(pair) + slice * block_bytes, num_slices * block_bytes};
  }

  Upcoming first_chunk_of(std::int64_t pair_task) const {
    return chunk(pair_task * cut_.pairs_of_task, 0);
  }

  float* sums_of(std::int64_t index) { return sums_ + index * cut_.rows_of_task * kPair; }

  void multiply(const Upcoming& blocks, const Place& place, const Upcoming& upcoming, float* sums) {
    const std::int64_t num_slices =
        blocks.num_bytes / static_cast<std::int64_t>(weights_.block_bytes());
    const std::int64_t element = element_bytes(kernels_.input_type);
    const auto* const rows = static_cast<const std::byte*>(in_.data) +
                             (place.first_row * in_.stride + place.slice * kSlice) * element;
    Product product = {rows,       in_.stride, place.num_rows,  blocks.first,
                       num_slices, sums,       place.slice > 0, upcoming};
    const auto format = static_cast<std::size_t>(weights_.format());
    const Unpacking unpacking = {blocks.first, num_slices, weights_.row_scales(place.pair), tiles_,
                                 upcoming};
    if (at_once_ != nullptr) {
      product.rows = arranged_at(place.first_row, place.slice);
      product.row_stride = weights_.num_slices();
      at_once_(unpacking, product);
      return;
    }
    if (kernels_.unpack[format] == nullptr) {
      kernels_.multiply(product);
      return;
    }
    kernels_.unpack[format](unpacking);
    product.tiles = tiles_;
    product.upcoming = {};
    kernels_.multiply(product);
  }

  void finish(std::int64_t pair, std::int64_t first_row, std::int64_t num_rows, const float* sums) {
    const std::int64_t element = element_bytes(out_.type);
    const bool gated = epilogue_ == Epilogue::kSiluMul;
    const bool in_gate_order = weights_.order() == RowOrder::kGateUp;
    alignas(64) float bias[kPair] = {};
    const std::int64_t num_gates = weights_.num_out() / 2;
    const std::int64_t width = in_gate_order ? kPanel : kPair;
    const std::int64_t column = pair * width;
    const std::int64_t num_columns = in_gate_order ? num_gates : weights_.num_out();
    const std::int64_t count = std::min(width, num_columns - column);
    if (bias_ != nullptr) {
      std::copy_n(bias_ + column, count, bias);
      if (in_gate_order) {
        std::copy_n(bias_ + num_gates + column, count, bias + kPanel);
      }
    }
    std::byte* const out = static_cast<std::byte*>(out_.data) +
                           (first_row * out_.stride + out_column_ + column) * element;
    Finish work = {sums, num_rows,  bias,        epilogue_,
                   out,  out_.type, out_.stride, static_cast<int>(count)};
    kernels_.finish(work);
    if (in_gate_order && !gated) {  // the ups' columns as well
      work.sums += kPanel;
      work.bias += kPanel;
      work.out += num_gates * element;
      kernels_.finish(work);
    }
  }

  const PackedMatrix& weights_;
  const ProductKernels& kernels_;
  void (*const at_once_)(const Unpacking&, const Product&);
  const Cut cut_;
  Rows in_;
  const float* bias_;
  Epilogue epilogue_;
  RowsOut out_;
  std::int64_t out_column_;
  std::byte* tiles_;
  float* sums_;
  std::byte* arranged_;
  std::byte* is_arranged_;  // for each task of rows, whether its rows are
};

}  // namespace

void linear(Worker& worker, TaskCursor& cursor, const PackedMatrix& weights, const Rows& in,
            const float* bias, Epilogue epilogue, const RowsOut& out, std::int64_t out_column) {
  if (epilogue == Epilogue::kAdd && out.type != Type::kF32) {
    throw std::invalid_argument("products are added to float32 rows only");
  }
  if (epilogue == Epilogue::kSiluMul && weights.order() != RowOrder::kGateUp) {
    throw std::invalid_argument("SiLU(gate) * up takes weights in kGateUp order");
  }
  if (in.num_rows > 0) {
    Share(worker, weights, in, bias, epilogue, out, out_column).run(cursor);
  }
}

}  // namespace antiphon::kernels
