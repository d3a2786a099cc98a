/* The thread in every CUDA process that locks, checkpoints, restores and unlocks it when another
 * process asks for it. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "process.h"

/* The first driver branches that can do something. */
enum { MIGRATES = 580, SAVES_IPC = 610 };

static CUresult lock_process(const struct request *request) {
    uint64_t deadline = request->timeout_ms ? now_ns() + request->timeout_ms * 1000000ull : 0;
    if (control.state != RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&process.mutex);
    process.closed = 1;
    /* What was submitted before has to end first; it is not cut off. */
    for (;;) {
        uint64_t now = now_ns();
        uint64_t until = process.busy_until;
        if (!process.inside && now >= until) break;
        if (deadline && now >= deadline) {
            process.closed = 0;
            pthread_cond_broadcast(&process.changed);
            pthread_mutex_unlock(&process.mutex);
            return CUDA_ERROR_NOT_READY;
        }
        if (process.inside || until < now) until = now + 1000000000ull;
        if (deadline && deadline < until) until = deadline;
        struct timespec wake = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
        pthread_cond_clockwait(&process.changed, &process.mutex, CLOCK_MONOTONIC, &wake);
    }
    process.busy_until = 0; /* where the process goes, the clock may be another */
    control.state = LOCKED;
    pthread_mutex_unlock(&process.mutex);
    return CUDA_SUCCESS;
}

static CUresult unlock_process(void) {
    if (control.state != LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_lock(&process.mutex);
    control.state = RUNNING;
    process.closed = 0;
    pthread_cond_broadcast(&process.changed);
    pthread_mutex_unlock(&process.mutex);
    return CUDA_SUCCESS;
}

static int read_all(int file, char *to, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
        ssize_t part = pread(file, to + done, size - done, (off_t)done);
        if (part <= 0) return -1;
        done += (uint64_t)part;
    }
    return 0;
}

static int write_all(int file, const char *from, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
        ssize_t part = pwrite(file, from + done, size - done, (off_t)done);
        if (part <= 0) return -1;
        done += (uint64_t)part;
    }
    return 0;
}

static void drop_saved(void) {
    for (struct allocation *each = process.allocations; each; each = each->next) {
        if (each->saved) munmap(each->saved, each->size);
        each->saved = NULL;
    }
}

static CUresult checkpoint_process(void) {
    struct allocation *each;
    if (control.state != LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
    if (process.uses_uvm) return CUDA_ERROR_NOT_SUPPORTED;
    if (process.uses_ipc && process.branch < SAVES_IPC) return CUDA_ERROR_NOT_SUPPORTED;
    for (each = process.allocations; each; each = each->next)
        if (gpu_number(process.gpus[each->gpu].uuid, "sliced") > 0) return CUDA_ERROR_OUT_OF_MEMORY;
    for (each = process.allocations; each; each = each->next) {
        if (each->is_context) continue;
        each->saved = mmap(NULL, each->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (each->saved == MAP_FAILED || read_all(each->file, each->saved, each->size)) {
            if (each->saved == MAP_FAILED) each->saved = NULL;
            drop_saved();
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    for (each = process.allocations; each; each = each->next) {
        unlink(each->path);
        close(each->file);
        each->file = -1;
    }
    devices_close();
    control.state = CHECKPOINTED;
    return CUDA_SUCCESS;
}

/* Which GPU each of the old ones becomes: all of them are named, once, and of the same model. */
static CUresult plan_move(const struct request *request, const struct machine *machine,
                          struct seen planned[MOST_GPUS]) {
    for (int index = 0; index < process.gpu_count; index++) {
        const struct seen *old = &process.gpus[index];
        struct seen *new = &planned[index];
        int known = 0;
        snprintf(new->uuid, sizeof new->uuid, "%s", request->pairs ? "" : old->uuid);
        for (uint32_t pair = 0; pair < request->pairs; pair++) {
            char from[UUID_TEXT];
            uuid_to_text(&request->pair[pair].oldUuid, from);
            if (!strcmp(from, old->uuid)) uuid_to_text(&request->pair[pair].newUuid, new->uuid);
        }
        for (int other = 0; other < machine->count; other++)
            known |= !strcmp(machine->gpus[other], new->uuid);
        for (int other = 0; other < index; other++) known &= !!strcmp(planned[other].uuid, new->uuid);
        if (!known || gpu_field(new->uuid, "model", new->name)) return CUDA_ERROR_INVALID_VALUE;
        if (strcmp(new->name, old->name)) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* With the GPUs' lists of allocations locked. */
static int fill_gpus(const struct seen planned[MOST_GPUS]) {
    for (int index = 0; index < process.gpu_count; index++) {
        uint64_t needed = 0;
        for (struct allocation *each = process.allocations; each; each = each->next)
            if (each->gpu == index) needed += each->size;
        if (needed && gpu_free_bytes(planned[index].uuid) < needed) return -1;
    }
    for (struct allocation *each = process.allocations; each; each = each->next) {
        each->file = memory_create(planned[each->gpu].uuid, each->size, each->path);
        if (each->file < 0 || (each->saved && write_all(each->file, each->saved, each->size))) return -1;
    }
    return 0;
}

static void empty_gpus(void) {
    for (struct allocation *each = process.allocations; each; each = each->next) {
        if (each->file < 0) continue;
        unlink(each->path);
        close(each->file);
        each->file = -1;
    }
}

static CUresult restore_process(const struct request *request) {
    struct machine machine;
    struct seen planned[MOST_GPUS] = {0};
    int locks[MOST_GPUS], failed;
    CUresult result;
    if (control.state != CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
    if (process.is_stuck || machine_read(&machine) || !machine_is_loaded(&machine))
        return CUDA_ERROR_OPERATING_SYSTEM;
    if (request->pairs && machine_branch(machine.loaded) < MIGRATES) return CUDA_ERROR_NOT_SUPPORTED;
    if ((result = plan_move(request, &machine, planned))) return result;
    if (devices_open()) return CUDA_ERROR_OPERATING_SYSTEM;
    for (int index = 0; index < machine.count; index++) locks[index] = memory_lock(machine.gpus[index]);
    failed = request->fault == FAULT_OOM || fill_gpus(planned);
    for (int index = 0; index < machine.count; index++)
        if (locks[index] >= 0) memory_unlock(locks[index]);
    if (failed) {
        empty_gpus();
        devices_close();
        process.is_stuck = 1;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    drop_saved();
    memcpy(process.gpus, planned, sizeof process.gpus);
    control.state = LOCKED;
    return CUDA_SUCCESS;
}

/* Nothing works any more, and nothing waits for what will not come. */
static CUresult fail_process(void) {
    pthread_mutex_lock(&process.mutex);
    control.state = FAILED;
    process.closed = 0;
    pthread_cond_broadcast(&process.changed);
    pthread_mutex_unlock(&process.mutex);
    return CUDA_ERROR_UNKNOWN;
}

static CUresult serve(const struct request *request) {
    while (request->fault == FAULT_HANG_TARGET) pause();
    if (request->fault == FAULT_DIE) crash();
    if (request->fault == FAULT_FAIL) return fail_process();
    if (control.state == FAILED) return CUDA_ERROR_ILLEGAL_STATE;
    if (request->fault == FAULT_OOM && request->call != RESTORE) return CUDA_ERROR_OUT_OF_MEMORY;
    switch (request->call) {
    case LOCK: return lock_process(request);
    case CHECKPOINT: return checkpoint_process();
    case RESTORE: return restore_process(request);
    case UNLOCK: return unlock_process();
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static void *wait_for_requests(void *unused) {
    sigset_t signals;
    (void)unused;
    sigemptyset(&signals);
    sigaddset(&signals, control_signal());
    control.restore_tid = (int32_t)syscall(SYS_gettid);
    for (;;) {
        while (control.answered == control.asked) sigwaitinfo(&signals, NULL);
        __sync_synchronize();
        control.result = serve(&control.request);
        __sync_synchronize();
        control.answered = control.asked;
    }
    return NULL;
}

int restore_thread_start(void) {
    pthread_t thread;
    sigset_t all, before;
    char name[16];
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, wait_for_requests, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return -1;
    snprintf(name, sizeof name, "cuda%08x", (unsigned)getpid());
    pthread_setname_np(thread, name);
    pthread_detach(thread);
    while (!control.restore_tid) sleep_ms(1);
    return 0;
}
