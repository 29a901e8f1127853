/* A libcuda.so.1 that has no GPU: what the CUDA runtime asks a driver first.
     FAKE_DRIVER_VERSION  what it says it is; empty: it does not say
     FAKE_DRIVER_INIT     the error of cuInit */
#include <stdlib.h>
#include <string.h>

static int number(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value && *value ? atoi(value) : otherwise;
}

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER_VERSION", 0);
  return *version ? 0 : 999;
}

int cuInit(unsigned flags) {
  (void)flags;
  return number("FAKE_DRIVER_INIT", 100);
}

static int unknown(void) { return 999; }

int cuGetProcAddress_v2(const char* name, void** address, int version, unsigned long long flags, int* status) {
  (void)version, (void)flags;
  if (status) *status = 0;
  *address = (void*)unknown;
  if (!strcmp(name, "cuDriverGetVersion")) *address = (void*)cuDriverGetVersion;
  if (!strcmp(name, "cuInit")) *address = (void*)cuInit;
  if (!strcmp(name, "cuGetProcAddress")) *address = (void*)cuGetProcAddress_v2;
  return 0;
}
