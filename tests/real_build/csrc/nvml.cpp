// The fake NVML, which torch asks for an error's text (the memory that each process uses), and before it maps memory.
#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

enum { kSuccess, kNotSupported = 3 };

struct Process {  // the beginning of nvmlProcessInfo_t
  unsigned number;
  unsigned long long bytes;
};

extern "C" {

int nvmlInit_v2() { return kSuccess; }

// A handle is the device's number and 1. The bus is named like that: device.cpp.
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  *device = reinterpret_cast<void*>(strtoul(bus + sizeof "00000000:" - 1, nullptr, 16) + 1);
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, Process* processes) {
  static auto used = reinterpret_cast<size_t (*)(int)>(dlsym(RTLD_DEFAULT, "streamrace_in_use"));
  *count = 1;
  processes[0] = {static_cast<unsigned>(getpid()), used(static_cast<int>(reinterpret_cast<size_t>(device)) - 1)};
  return kSuccess;
}

struct Fabric {  // the beginning of nvmlGpuFabricInfoV_t
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state;
};

int nvmlDeviceGetGpuFabricInfoV(void*, Fabric* of) {
  of->state = 0;  // NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) { return kNotSupported; }
int nvmlSystemGetCudaDriverVersion_v2(int*) { return kNotSupported; }

}  // extern "C"
