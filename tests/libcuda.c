/* A stand-in for NVIDIA's libcuda without a GPU: every call says CUDA_ERROR_NO_DEVICE.
 * tests/simulated_driver.py compiles it. The compiled parts of vLLM, which are linked against these
 * functions, then load on a machine without a driver. */
enum { NO_DEVICE = 100 };

#define WITHOUT_A_GPU(name) int name(void) { return NO_DEVICE; }

WITHOUT_A_GPU(cuInit)
WITHOUT_A_GPU(cuCtxGetCurrent)
WITHOUT_A_GPU(cuCtxSetCurrent)
WITHOUT_A_GPU(cuDeviceGetAttribute)
WITHOUT_A_GPU(cuDevicePrimaryCtxRetain)
WITHOUT_A_GPU(cuGetErrorString)
WITHOUT_A_GPU(cuGetProcAddress_v2)
WITHOUT_A_GPU(cuMemAddressFree)
WITHOUT_A_GPU(cuMemAddressReserve)
WITHOUT_A_GPU(cuMemCreate)
WITHOUT_A_GPU(cuMemGetAllocationGranularity)
WITHOUT_A_GPU(cuMemMap)
WITHOUT_A_GPU(cuMemRelease)
WITHOUT_A_GPU(cuMemSetAccess)
WITHOUT_A_GPU(cuMemUnmap)
WITHOUT_A_GPU(cuPointerGetAttribute)
WITHOUT_A_GPU(cuTensorMapEncodeTiled)
