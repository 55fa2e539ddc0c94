#include <array>
#include <span>
#include <stdexcept>
#include <utility>

#include "bindings.h"

namespace antiphon::kernels::bindings {

namespace {

template <class Value>
using Word = std::pair<const char*, Value>;

constexpr std::array<Word<Type>, 2> kTypes{{{"float32", Type::kF32}, {"bfloat16", Type::kBf16}}};
constexpr std::array<Word<WeightFormat>, 6> kFormats{{{"float32", WeightFormat::kF32},
                                                      {"bfloat16", WeightFormat::kBf16},
                                                      {"int8", WeightFormat::kInt8},
                                                      {"int6", WeightFormat::kInt6},
                                                      {"int5", WeightFormat::kInt5},
                                                      {"int4", WeightFormat::kInt4}}};
constexpr std::array<Word<RowOrder>, 2> kOrders{
    {{"plain", RowOrder::kPlain}, {"gate_up", RowOrder::kGateUp}}};
constexpr std::array<Word<GgufType>, 6> kGgufTypes{{{"Q4_0", GgufType::kQ4_0},
                                                    {"Q5_0", GgufType::kQ5_0},
                                                    {"Q8_0", GgufType::kQ8_0},
                                                    {"Q4_K", GgufType::kQ4_K},
                                                    {"Q5_K", GgufType::kQ5_K},
                                                    {"Q6_K", GgufType::kQ6_K}}};
constexpr std::array<Word<Epilogue>, 3> kEpilogues{
    {{"store", Epilogue::kStore}, {"add", Epilogue::kAdd}, {"silu_mul", Epilogue::kSiluMul}}};
constexpr std::array<Isa, 7> kIsas{Isa::kPortable, Isa::kAvx2,    Isa::kAvx512,    Isa::kAvx512Bf16,
                                   Isa::kAmx,      Isa::kAvxVnni, Isa::kAvx512Vnni};

template <class Value, std::size_t size>
Value find(const char* what, const std::string& word, const std::array<Word<Value>, size>& words) {
  std::string known;
  for (const auto& [name, value] : words) {
    if (word == name) {
      return value;
    }
    known += std::string(known.empty() ? "" : ", ") + name;
  }
  throw std::invalid_argument(std::string(what) + " is '" + word + "', expected one of " + known);
}

template <class Value, std::size_t size>
const char* find_word(Value wanted, const std::array<Word<Value>, size>& words) {
  for (const auto& [name, value] : words) {
    if (value == wanted) {
      return name;
    }
  }
  return "unknown";
}

}  // namespace

Isa read_isa(const std::string& word) {
  std::array<Word<Isa>, kIsas.size()> words;
  for (std::size_t index = 0; index < kIsas.size(); ++index) {
    words[index] = {name(kIsas[index]), kIsas[index]};
  }
  return find("isa", word, words);
}

Type read_type(const std::string& word) { return find("element_type", word, kTypes); }

WeightFormat read_format(const std::string& word) { return find("weight_format", word, kFormats); }

RowOrder read_order(const std::string& word) { return find("order", word, kOrders); }

GgufType read_gguf_type(const std::string& word) { return find("gguf_type", word, kGgufTypes); }

Epilogue read_epilogue(const std::string& word) { return find("epilogue", word, kEpilogues); }

const char* word_of(WeightFormat format) { return find_word(format, kFormats); }

const char* word_of(Type type) { return find_word(type, kTypes); }

}  // namespace antiphon::kernels::bindings
