#include <initializer_list>
#include <stdexcept>
#include <string>

#include "bindings.h"

namespace py = pybind11;

namespace antiphon::bindings {

namespace {

// Takes the named arrays out of the keyword arguments, checks each and remembers its owner.
class ArrayReader {
 public:
  ArrayReader(const py::kwargs& arrays, RegisteredBuffers& result)
      : arrays_(arrays), result_(result) {}

  // `columns`: the second dimension, or 0 for an array of one dimension.
  template <typename T>
  T* Read(const char* name, std::int64_t min_length, std::int64_t columns = 0) {
    ++num_read_;
    if (!arrays_.contains(name)) {
      throw std::invalid_argument(std::string("register_buffers needs the array ") + name);
    }
    const py::object value = arrays_[name];
    if (!py::isinstance<py::array_t<T, py::array::c_style>>(value)) {
      Refuse(name,
             "must be C-contiguous of type " + py::str(py::dtype::of<T>()).cast<std::string>());
    }
    auto array = py::reinterpret_borrow<py::array>(value);
    if (!array.writeable()) {
      Refuse(name, "must be writeable");
    }
    if (array.ndim() != (columns == 0 ? 1 : 2) || (columns != 0 && array.shape(1) != columns) ||
        array.shape(0) < min_length) {
      Refuse(name, "must have at least " + std::to_string(min_length) +
                       (columns == 0 ? " elements" : " rows of " + std::to_string(columns)));
    }
    last_length_ = array.shape(0);
    result_.owners.push_back(array);
    return static_cast<T*>(array.mutable_data());
  }

  std::int64_t last_length() const { return last_length_; }

  void CheckAllRead() const {
    if (arrays_.size() != num_read_) {
      throw std::invalid_argument("register_buffers was given an array that it does not know");
    }
  }

 private:
  [[noreturn]] static void Refuse(const char* name, const std::string& what) {
    throw std::invalid_argument(std::string(name) + " " + what);
  }

  const py::kwargs& arrays_;
  RegisteredBuffers& result_;
  std::size_t num_read_ = 0;
  std::int64_t last_length_ = 0;
};

}  // namespace

RegisteredBuffers ReadBuffers(const py::kwargs& arrays, const CoreConfig& config) {
  RegisteredBuffers result;
  StepBuffers& out = result.buffers;
  ArrayReader reader(arrays, result);
  const std::int64_t rows = config.max_rows;
  const std::int64_t tokens = config.max_step_tokens;
  out.header = reader.Read<std::int32_t>("header", kHeaderSize);
  out.handle = reader.Read<std::uint64_t>("handle", rows);
  out.epoch = reader.Read<std::uint32_t>("epoch", rows);
  out.slot = reader.Read<std::int32_t>("slot", rows);
  out.adapter = reader.Read<std::int32_t>("adapter", rows);
  out.flags = reader.Read<std::uint32_t>("flags", rows);
  out.q_len = reader.Read<std::int32_t>("q_len", rows);
  out.cu_q = reader.Read<std::int32_t>("cu_q", rows + 1);
  out.ctx_len = reader.Read<std::int32_t>("ctx_len", rows);
  out.kv_len = reader.Read<std::int32_t>("kv_len", rows);
  out.reused_tokens = reader.Read<std::int32_t>("reused_tokens", rows);
  out.output_position = reader.Read<std::int32_t>("output_position", rows);
  out.uniform = reader.Read<double>("uniform", rows);
  out.sample_indptr = reader.Read<std::int32_t>("sample_indptr", rows + 1);
  out.sample_rows = reader.Read<std::int32_t>("sample_rows", rows);
  out.input_ids = reader.Read<std::int32_t>("input_ids", tokens);
  out.gather_slot = reader.Read<std::int32_t>("gather_slot", tokens);
  out.positions = reader.Read<std::int32_t>("positions", tokens);
  out.slot_mapping = reader.Read<std::int64_t>("slot_mapping", tokens);
  out.table_delta = reader.Read<std::int32_t>("table_delta", 0, kTableDeltaColumns);
  out.max_table_deltas = static_cast<std::int32_t>(
      std::min<std::int64_t>(reader.last_length(), std::numeric_limits<std::int32_t>::max()));
  out.copy_ops = reader.Read<std::int32_t>("copy_ops", 0, kCopyColumns);
  out.max_copies = static_cast<std::int32_t>(
      std::min<std::int64_t>(reader.last_length(), std::numeric_limits<std::int32_t>::max()));
  out.slot_init = reader.Read<std::int32_t>("slot_init", rows);
  out.tokens = reader.Read<std::int32_t>("tokens", rows, 1);
  out.num_tokens = reader.Read<std::int32_t>("num_tokens", rows);
  out.result = reader.Read<std::int32_t>("result", rows, kResultColumns);
  reader.CheckAllRead();
  return result;
}

}  // namespace antiphon::bindings
