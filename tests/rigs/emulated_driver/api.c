/* What a program calls: devices, contexts, memory, and one kernel that takes time. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "process.h"

struct context {
    int ordinal;
    struct allocation *memory;
};
struct module {
    int unused;
};
struct function {
    int unused;
};

static __thread struct context *current;
static struct context *primary[MOST_GPUS];
static struct module module;
static struct function sleeper; /* sleep_ms(unsigned int) */

/* An ordinal as the program counts -> its UUID; NULL: there is no such device */
static const char *uuid_of(int ordinal) {
    if (ordinal < 0 || ordinal >= process.visible_count) return NULL;
    return process.gpus[process.visible[ordinal]].uuid;
}

CUresult cuDriverGetVersion(int *version) {
    struct machine machine;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = machine_read(&machine) ? 0 : machine.cuda;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    CUresult result = process_enter();
    if (result) return result;
    *count = process.visible_count;
    return process_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    CUresult result = process_enter();
    if (result) return result;
    if (!uuid_of(ordinal)) return process_leave(CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return process_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    CUresult result = process_enter();
    if (result) return result;
    if (!uuid_of(device)) return process_leave(CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, (size_t)length, "%s", process.gpus[process.visible[device]].name);
    return process_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    CUresult result = process_enter();
    if (result) return result;
    if (!uuid_of(device)) return process_leave(CUDA_ERROR_INVALID_DEVICE);
    uuid_from_text(uuid_of(device), uuid);
    return process_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult result = process_enter();
    if (result) return result;
    if (!uuid_of(device)) return process_leave(CUDA_ERROR_INVALID_DEVICE);
    *bytes = (size_t)gpu_number(uuid_of(device), "capacity");
    return process_leave(CUDA_SUCCESS);
}

/* Of the attributes, the two of the compute capability; any other is 0. */
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };
    int major = 0, minor = 0;
    char text[LONG_TEXT];
    CUresult result = process_enter();
    if (result) return result;
    if (!uuid_of(device)) return process_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!gpu_field(uuid_of(device), "capability", text) && sscanf(text, "%d.%d", &major, &minor) != 2)
        return process_leave(CUDA_ERROR_UNKNOWN);
    *value = attribute == CAPABILITY_MAJOR ? major : attribute == CAPABILITY_MINOR ? minor : 0;
    return process_leave(CUDA_SUCCESS);
}

static CUresult context_new(CUcontext *made, CUdevice device) {
    struct machine machine;
    CUresult result = CUDA_ERROR_INVALID_DEVICE;
    struct context *new;
    if (!uuid_of(device)) return result;
    if (machine_read(&machine)) return CUDA_ERROR_UNKNOWN;
    if (!(new = calloc(1, sizeof *new))) return CUDA_ERROR_OUT_OF_MEMORY;
    new->ordinal = device;
    pthread_mutex_lock(&process.mutex);
    new->memory = allocation_new(process.visible[device], machine.context, 1, &result);
    pthread_mutex_unlock(&process.mutex);
    if (result) free(new);
    else *made = new;
    return result;
}

static void context_free(CUcontext context) {
    pthread_mutex_lock(&process.mutex);
    allocation_free(context->memory);
    pthread_mutex_unlock(&process.mutex);
    if (current == context) current = NULL;
    free(context);
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
    CUresult result = process_enter();
    (void)flags;
    if (result) return result;
    if (!(result = context_new(context, device))) current = *context;
    return process_leave(result);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device) {
    (void)parameters;
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxDestroy_v2(CUcontext context) {
    CUresult result = process_enter();
    if (result) return result;
    if (!context) return process_leave(CUDA_ERROR_INVALID_CONTEXT);
    context_free(context);
    return process_leave(CUDA_SUCCESS);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CUresult result = process_enter();
    if (result) return result;
    if (uuid_of(device) && primary[device]) *context = primary[device];
    else if (!(result = context_new(context, device))) primary[device] = *context;
    return process_leave(result);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CUresult result = process_enter();
    if (result) return result;
    if (!uuid_of(device) || !primary[device]) return process_leave(CUDA_ERROR_INVALID_DEVICE);
    context_free(primary[device]);
    primary[device] = NULL;
    return process_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCurrent(CUcontext context) {
    CUresult result = process_enter();
    if (result) return result;
    current = context;
    return process_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    CUresult result = process_enter();
    if (result) return result;
    *context = current;
    return process_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device) {
    CUresult result = process_enter();
    if (result) return result;
    if (!current) return process_leave(CUDA_ERROR_INVALID_CONTEXT);
    *device = current->ordinal;
    return process_leave(CUDA_SUCCESS);
}

/* Returns once all kernels that were launched have ended. */
CUresult cuCtxSynchronize(void) {
    CUresult result = process_enter();
    if (result) return result;
    pthread_mutex_lock(&process.mutex);
    uint64_t until = process.busy_until, now = now_ns();
    pthread_mutex_unlock(&process.mutex);
    if (until > now) sleep_ms((long)((until - now + 999999) / 1000000));
    return process_leave(CUDA_SUCCESS);
}

CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    CUresult result = process_enter();
    if (result) return result;
    if (!current) return process_leave(CUDA_ERROR_INVALID_CONTEXT);
    *total = (size_t)gpu_number(uuid_of(current->ordinal), "capacity");
    *unused = (size_t)gpu_free_bytes(uuid_of(current->ordinal));
    return process_leave(CUDA_SUCCESS);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) {
    CUresult result = process_enter();
    if (result) return result;
    if (!current) return process_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!bytes) return process_leave(CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&process.mutex);
    struct allocation *new = allocation_new(process.visible[current->ordinal], bytes, 0, &result);
    if (new) *pointer = new->base;
    pthread_mutex_unlock(&process.mutex);
    return process_leave(result);
}

/* Unified memory. It stays on the GPU here; what counts is that the process cannot be saved. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags) {
    CUresult result = cuMemAlloc_v2(pointer, bytes);
    (void)flags;
    if (!result) process.uses_uvm = 1;
    return result;
}

/* The allocation that a range lies in, with the mutex held; NULL: in none */
static struct allocation *allocation_at(CUdeviceptr address, size_t bytes) {
    for (struct allocation *each = process.allocations; each; each = each->next)
        if (!each->is_context && address >= each->base && bytes <= each->size &&
            address - each->base <= each->size - bytes)
            return each;
    return NULL;
}

CUresult cuMemFree_v2(CUdeviceptr pointer) {
    CUresult result = process_enter();
    if (result) return result;
    pthread_mutex_lock(&process.mutex);
    struct allocation *found = allocation_at(pointer, 1);
    if (found && found->base == pointer) allocation_free(found);
    else result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&process.mutex);
    return process_leave(result);
}

static CUresult copy(CUdeviceptr device, char *host, size_t bytes, int to_device) {
    CUresult result = process_enter();
    if (result) return result;
    pthread_mutex_lock(&process.mutex);
    struct allocation *found = allocation_at(device, bytes);
    int file = found ? found->file : -1;
    off_t offset = found ? (off_t)(device - found->base) : 0;
    pthread_mutex_unlock(&process.mutex);
    if (!found) result = CUDA_ERROR_INVALID_VALUE;
    for (size_t done = 0; !result && done < bytes;) {
        ssize_t part = to_device ? pwrite(file, host + done, bytes - done, offset + (off_t)done)
                                 : pread(file, host + done, bytes - done, offset + (off_t)done);
        if (part <= 0) result = CUDA_ERROR_ILLEGAL_ADDRESS;
        else done += (size_t)part;
    }
    return process_leave(result);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy(to, (char *)from, bytes, 1);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) { return copy(from, to, bytes, 0); }

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer) {
    CUresult result = process_enter();
    if (result) return result;
    pthread_mutex_lock(&process.mutex);
    struct allocation *found = allocation_at(pointer, 1);
    if (found) {
        memset(handle, 0, sizeof *handle);
        memcpy(handle->reserved, &found->base, sizeof found->base);
        process.uses_ipc = 1;
    }
    pthread_mutex_unlock(&process.mutex);
    return process_leave(found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* Any image is a module with one kernel, sleep_ms, that keeps its process's GPUs busy. */
CUresult cuModuleLoadData(CUmodule *loaded, const void *image) {
    CUresult result = process_enter();
    if (result) return result;
    if (!image) return process_leave(CUDA_ERROR_INVALID_VALUE);
    *loaded = &module;
    return process_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule loaded, const char *name) {
    CUresult result = process_enter();
    if (result) return result;
    if (loaded != &module || strcmp(name, "sleep_ms")) return process_leave(CUDA_ERROR_NOT_FOUND);
    *function = &sleeper;
    return process_leave(CUDA_SUCCESS);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared, CUstream stream,
                        void **parameters, void **extra) {
    CUresult result = process_enter();
    (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared, (void)stream, (void)extra;
    if (result) return result;
    if (function != &sleeper) return process_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!current) return process_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!parameters || !parameters[0]) return process_leave(CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&process.mutex);
    uint64_t now = now_ns(), from = process.busy_until > now ? process.busy_until : now;
    process.busy_until = from + *(unsigned int *)parameters[0] * 1000000ull;
    pthread_mutex_unlock(&process.mutex);
    return process_leave(CUDA_SUCCESS);
}
