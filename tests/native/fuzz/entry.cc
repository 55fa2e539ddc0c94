// What libFuzzer and driver.cc call.
#include <cstddef>
#include <cstdint>

#include "command_stream.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  antiphon::fuzz::CommandStream stream({data, size});
  return stream.Run() ? 0 : -1;
}
