/* A stand-in for NVIDIA's libcuda: no GPU is found, but memory can be reserved, mapped and given back,
 * in the host's. tests/simulated_driver.py compiles it. vLLM's compiled parts, which are linked
 * against these functions, then load without a driver, and its sleep mode runs. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/mman.h>

enum { SUCCESS = 0, NO_DEVICE = 100, GRANULARITY = 1 << 21 };
typedef unsigned long long Address;

size_t simulated_mapped_bytes;

int cuInit(unsigned flags) { (void)flags; return NO_DEVICE; }
int cuGetProcAddress_v2(void) { return NO_DEVICE; }
int cuPointerGetAttribute(void) { return NO_DEVICE; }
int cuTensorMapEncodeTiled(void) { return NO_DEVICE; }
int cuCtxSetCurrent(void *context) { (void)context; return SUCCESS; }
int cuCtxGetCurrent(void **context) { *context = &simulated_mapped_bytes; return SUCCESS; }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; return cuCtxGetCurrent(context); }
int cuDeviceGetAttribute(int *value, int attribute, int device) { (void)attribute; (void)device; *value = 0; return SUCCESS; }
int cuGetErrorString(int error, const char **text) { (void)error; *text = "simulated"; return SUCCESS; }

int cuMemGetAllocationGranularity(size_t *size) { *size = GRANULARITY; return SUCCESS; }
int cuMemCreate(Address *handle) { *handle = 1; return SUCCESS; }
int cuMemRelease(Address handle) { (void)handle; return SUCCESS; }
int cuMemSetAccess(void) { return SUCCESS; }

static int place(Address at, size_t size, int protection)
{
    void *found = mmap((void *)at, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return found == MAP_FAILED ? NO_DEVICE : SUCCESS;
}

int cuMemAddressReserve(Address *at, size_t size)
{
    *at = (Address)mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return SUCCESS;
}

int cuMemAddressFree(Address at, size_t size) { return munmap((void *)at, size); }

int cuMemMap(Address at, size_t size)  /* holds zeros, as new memory may */
{
    simulated_mapped_bytes += size;
    return place(at, size, PROT_READ | PROT_WRITE);
}

int cuMemUnmap(Address at, size_t size)  /* to touch it is a fault from now on */
{
    simulated_mapped_bytes -= size;
    return place(at, size, PROT_NONE);
}
