// The fake CUDA driver: a context for each device that the runtime has used. Stubs are all that is not here.
#include <dlfcn.h>

// Both libraries are loaded with torch; the driver does not link with the runtime, as CUDA's does not.
static bool used(int device) {
  static auto ask = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "streamrace_used"));
  return ask == nullptr || ask(device) != 0;
}

extern "C" {

int cuInit(unsigned) { return 0; }

int cuCtxGetCurrent(void** context) {
  static char some;
  *context = &some;
  return 0;
}

int cuCtxSetCurrent(void*) { return 0; }

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = used(device);
  return 0;
}

}  // extern "C"
