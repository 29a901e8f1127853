// No exception crosses the API.
#pragma once
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "core/status.h"

namespace freetoken {

// work() -> Status; what the standard library throws becomes a Status. `what` is what was being done ("loading").
template <class F>
Status guarded(const char* what, F&& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(std::string(what) + " failed: out of memory");
  } catch (const std::system_error& e) {
    return ResourceExhausted(std::string(what) + " failed: no thread could be started: " + e.what());
  } catch (const std::exception& e) {
    return Internal(std::string(what) + " failed: " + e.what());
  }
}

}  // namespace freetoken
