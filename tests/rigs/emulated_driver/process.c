#define _GNU_SOURCE
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct control control = {.magic = CONTROL_MAGIC};

struct process process = {
    .mutex = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .next_base = 0x7f0000000000ull,
};

int control_signal(void) { return SIGRTMAX - 3; }

int process_is_ours(void) { return control.pid == getpid(); }

CUresult process_enter(void) {
    if (!process_is_ours()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&process.mutex);
    while (process.closed) pthread_cond_wait(&process.changed, &process.mutex);
    int failed = control.state == FAILED;
    process.inside += !failed;
    pthread_mutex_unlock(&process.mutex);
    return failed ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult process_leave(CUresult result) {
    pthread_mutex_lock(&process.mutex);
    process.inside--;
    pthread_cond_broadcast(&process.changed);
    pthread_mutex_unlock(&process.mutex);
    return result;
}

/* On a node that has /dev/nvidiactl of its own, that is the path; elsewhere, where it is missing
 * or a real one, the nodes in the machine's directory. */
static void device_path(char *path, const char *name) {
    struct stat wanted, found;
    char real[PATH_TEXT];
    machine_path(path, "dev/%s", name);
    snprintf(real, sizeof real, "/dev/%s", name);
    if (!stat(path, &wanted) && !stat(real, &found) && wanted.st_rdev == found.st_rdev)
        snprintf(path, PATH_TEXT, "%s", real);
}

int devices_open(void) {
    char path[PATH_TEXT], name[32];
    struct machine machine;
    if (machine_read(&machine)) return -1;
    for (int index = 0; index < MOST_GPUS + 2; index++) process.devices[index] = -1;
    for (int index = 0; index < machine.count + 2; index++) {
        snprintf(name, sizeof name, "nvidia%d", index - 2);
        device_path(path, index == 0 ? "nvidiactl" : index == 1 ? "nvidia-uvm" : name);
        process.devices[index] = open(path, O_RDWR | O_CLOEXEC);
        if (process.devices[index] < 0) {
            fprintf(stderr, "emulated driver: %s: %s\n", path, strerror(errno));
            devices_close();
            return -1;
        }
    }
    return 0;
}

void devices_close(void) {
    for (int index = 0; index < MOST_GPUS + 2; index++) {
        if (process.devices[index] >= 0) close(process.devices[index]);
        process.devices[index] = -1;
    }
}

/* CUDA_VISIBLE_DEVICES: ordinals or UUIDs; what does not exist ends the list. */
static void choose_visible(const struct machine *machine) {
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    process.visible_count = 0;
    if (!wanted) {
        for (int index = 0; index < machine->count; index++)
            process.visible[process.visible_count++] = index;
        return;
    }
    char list[4096], *rest = NULL;
    snprintf(list, sizeof list, "%s", wanted);
    for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        char *end;
        long index = strtol(word, &end, 10);
        if (end == word || *end) {
            for (index = 0; index < machine->count; index++)
                if (!strncasecmp(machine->gpus[index], word, strlen(word))) break;
        }
        if (index < 0 || index >= machine->count || process.visible_count == MOST_GPUS) return;
        process.visible[process.visible_count++] = (int)index;
    }
}

static CUresult begin(void) {
    struct machine machine;
    struct fault fault = fault_of("init", getpid());
    fault_apply_to_caller(fault);
    if (fault.kind == FAULT_ERROR) return (CUresult)fault.value;
    if (machine_read(&machine) || !machine_is_loaded(&machine)) return CUDA_ERROR_NO_DEVICE;
    if (strcmp(machine.loaded, machine.installed)) return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    process.branch = machine_branch(machine.loaded);
    process.gpu_count = machine.count;
    for (int index = 0; index < machine.count; index++) {
        struct seen *gpu = &process.gpus[index];
        snprintf(gpu->uuid, sizeof gpu->uuid, "%s", machine.gpus[index]);
        if (gpu_field(gpu->uuid, "model", gpu->name)) return CUDA_ERROR_UNKNOWN;
    }
    choose_visible(&machine);
    if (!process.visible_count) return CUDA_ERROR_NO_DEVICE;
    if (devices_open()) return CUDA_ERROR_OPERATING_SYSTEM;
    if (restore_thread_start()) {
        devices_close();
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    control.state = RUNNING;
    control.pid = getpid();
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags) {
    static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
    CUresult result;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    /* CUDA does not work in the fork of a process that has initialised it. */
    if (control.pid && !process_is_ours()) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&starting);
    result = control.pid ? CUDA_SUCCESS : begin();
    pthread_mutex_unlock(&starting);
    return result;
}

uint64_t gpu_free_bytes(const char *uuid) {
    uint64_t used;
    long long total = gpu_number(uuid, "capacity");
    memory_owners(uuid, NULL, 0, &used);
    return total > 0 && (uint64_t)total > used ? (uint64_t)total - used : 0;
}

struct allocation *allocation_new(int gpu, uint64_t size, int is_context, CUresult *result) {
    const char *uuid = process.gpus[gpu].uuid;
    struct allocation *new = calloc(1, sizeof *new);
    int lock = memory_lock(uuid);
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!new || lock < 0 || gpu_free_bytes(uuid) < size ||
        (new->file = memory_create(uuid, size, new->path)) < 0) {
        if (lock >= 0) memory_unlock(lock);
        free(new);
        return NULL;
    }
    memory_unlock(lock);
    new->base = process.next_base;
    process.next_base += (size + 0x3fffff) & ~0x1fffffull; /* a gap after each finds overruns */
    new->size = size;
    new->gpu = gpu;
    new->is_context = is_context;
    new->next = process.allocations;
    process.allocations = new;
    *result = CUDA_SUCCESS;
    return new;
}

void allocation_free(struct allocation *allocation) {
    struct allocation **link = &process.allocations;
    while (*link != allocation) link = &(*link)->next;
    *link = allocation->next;
    unlink(allocation->path);
    close(allocation->file);
    free(allocation);
}

void uuid_to_text(const CUuuid *uuid, char text[UUID_TEXT]) {
    int length = snprintf(text, UUID_TEXT, "GPU-");
    for (int index = 0; index < 16; index++) {
        const char *dash = index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "";
        length += snprintf(text + length, (size_t)(UUID_TEXT - length), "%s%02x", dash, uuid->bytes[index]);
    }
}

void uuid_from_text(const char *text, CUuuid *uuid) {
    unsigned int byte;
    int index = 0;
    text += strlen("GPU-");
    while (index < 16 && *text) {
        if (*text == '-') {
            text++;
            continue;
        }
        if (sscanf(text, "%2x", &byte) != 1) return;
        uuid->bytes[index++] = (unsigned char)byte;
        text += 2;
    }
}
