// All memory the emulated runtime knows: of every device, pinned, and registered by the host.
#pragma once
#include <cstddef>

#include "emulator/launch.h"
#include "memory/arena.h"

namespace freetoken::emu {

constexpr int kMaxDevices = 8;

Arena& device_memory(int device);
Arena& pinned_memory();

struct Owner {
  Place place = Place::kElsewhere;
  int device = -1;
};
// By address alone: freed memory has an owner too.
Owner owner_of(const void* pointer);
bool register_host(void* pointer, size_t bytes);
bool unregister_host(void* pointer);
// Pinned or registered, all of it and not freed.
bool is_pinned(const void* pointer, size_t bytes);
// Usable by the copy engine of any device: live device memory, or pinned.
bool is_device_range(const void* pointer, size_t bytes);

// Ends the process if an argument points to freed memory, to memory of another device, or into host memory that is not
// pinned: what the kernel would do with it has no defined result.
void check_arguments(const Kernel& kernel);

}  // namespace freetoken::emu
