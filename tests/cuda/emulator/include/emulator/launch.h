// From FT_LAUNCH to the stream: the arguments are copied when the launch is issued, and looked at again when it runs.
#pragma once
#include <cstddef>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <vector>

#include "emulator/types.h"

namespace freetoken::emu {

// One launch as a value: what runs, over which grid, with which arguments.
struct Kernel {
  const char* name = "";
  const void* entry = nullptr;
  dim3 grid, block;
  size_t dynamic_shared_bytes = 0;
  int device = 0;
  std::vector<uint64_t> argument_words;  // of all arguments, padding cleared: what may be a pointer
  void (*call)(const void* arguments) = nullptr;
  std::shared_ptr<const void> arguments;
};

void launch(std::shared_ptr<Kernel> kernel, cudaStream_t stream);

template <class T>
void add_words(std::vector<uint64_t>& words, T value) {
  static_assert(std::is_trivially_copyable_v<T>, "kernel arguments are copied byte by byte");
  __builtin_clear_padding(&value);
  const size_t at = words.size();
  words.resize(at + (sizeof(T) + 7) / 8);
  std::memcpy(words.data() + at, &value, sizeof(T));
}

template <class... P, class... A>
void launch_kernel(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, size_t dynamic_shared_bytes,
                   cudaStream_t stream, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "the kernel takes another number of arguments");
  using Pack = std::tuple<void (*)(P...), std::remove_cv_t<P>...>;
  auto pack = std::make_shared<const Pack>(kernel, static_cast<std::remove_cv_t<P>>(arguments)...);
  auto launched = std::make_shared<Kernel>();
  launched->name = name;
  launched->entry = reinterpret_cast<const void*>(kernel);
  launched->grid = grid;
  launched->block = block;
  launched->dynamic_shared_bytes = dynamic_shared_bytes;
  std::apply([&](auto, auto... values) { (add_words(launched->argument_words, values), ...); }, *pack);
  launched->call = [](const void* raw) {
    std::apply([](auto function, auto... values) { function(values...); }, *static_cast<const Pack*>(raw));
  };
  launched->arguments = std::move(pack);
  launch(std::move(launched), stream);
}

}  // namespace freetoken::emu
