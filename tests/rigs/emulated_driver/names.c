/* Names of errors, and of functions: the bindings ask for each of them through
 * cuGetProcAddress. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "cuda.h"

static const struct {
    CUresult number;
    const char *name, *text;
} ERRORS[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM",
     "OS call failed or operation not supported on this OS"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult look_up(CUresult error, const char **name, const char **text) {
    for (size_t index = 0; index < sizeof ERRORS / sizeof *ERRORS; index++)
        if (ERRORS[index].number == error) {
            if (name) *name = ERRORS[index].name;
            if (text) *text = ERRORS[index].text;
            return CUDA_SUCCESS;
        }
    if (name) *name = NULL;
    if (text) *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char **name) { return look_up(error, name, NULL); }

CUresult cuGetErrorString(CUresult error, const char **text) { return look_up(error, NULL, text); }

/* The newest form of a function that a program built for a CUDA version may get. */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    static const char *const FORMS[] = {"_v4", "_v2", ""};
    static void *self;
    Dl_info place;
    char name[128];
    (void)flags;
    if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
    if (!self && dladdr((void *)cuInit, &place)) self = dlopen(place.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    *function = NULL;
    for (size_t index = version >= 12050 ? 0 : 1; self && !*function && index < 3; index++) {
        snprintf(name, sizeof name, "%s%s", symbol, FORMS[index]);
        *function = dlsym(self, name);
    }
    if (status) *status = *function ? 0 : 1;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
