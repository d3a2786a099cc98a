/* The checkpoint calls, as another process makes them. Nothing but the target's own memory is
 * used to find and to drive it, so it can have been restored on another node meanwhile. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "process.h"

enum { CAN_CHECKPOINT = 570 };

const char *const CALL_NAMES[CALLS] = {"get_state", "get_restore_thread_id", "lock",
                                       "checkpoint", "restore", "unlock"};

struct target {
    int pid;
    uintptr_t address; /* of its control block */
    struct control seen;
};

/* Where libcuda is mapped in a process: this very library, by its inode. 0: nowhere; then errno
 * tells if that could not be read. */
static uintptr_t mapped_at(int pid, const struct stat *own) {
    char path[64], line[PATH_TEXT + 128];
    uintptr_t found = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file)) {
        unsigned long start, offset, inode;
        if (sscanf(line, "%lx-%*x %*s %lx %*s %lu", &start, &offset, &inode) == 3 && offset == 0 &&
            inode == own->st_ino && strstr(line, "/libcuda.so"))
            found = start;
    }
    fclose(file);
    errno = 0;
    return found;
}

static int is_alive(int pid) {
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = '?';
    fclose(file);
    return state != 'X' && state != 'Z';
}

static int peek(struct target *target) {
    struct iovec local = {&target->seen, sizeof target->seen};
    struct iovec remote = {(void *)target->address, sizeof target->seen};
    ssize_t size = process_vm_readv(target->pid, &local, 1, &remote, 1, 0);
    return size == (ssize_t)sizeof target->seen ? 0 : -1;
}

static int poke(const struct target *target, size_t offset, const void *from, size_t size) {
    struct iovec local = {(void *)from, size};
    struct iovec remote = {(void *)(target->address + offset), size};
    return process_vm_writev(target->pid, &local, 1, &remote, 1, 0) == (ssize_t)size ? 0 : -1;
}

static int note_base(struct dl_phdr_info *info, size_t size, void *result) {
    uintptr_t self = (uintptr_t)&control;
    (void)size;
    for (int index = 0; index < info->dlpi_phnum; index++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[index];
        uintptr_t start = info->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && self >= start && self < start + part->p_memsz) {
            *(struct dl_phdr_info *)result = *info;
            return 1;
        }
    }
    return 0;
}

static CUresult find(int pid, struct target *target) {
    struct dl_phdr_info self = {0};
    struct stat library;
    target->pid = pid;
    if (pid <= 0 || !is_alive(pid)) return CUDA_ERROR_INVALID_VALUE;
    if (!dl_iterate_phdr(note_base, &self) || stat(self.dlpi_name, &library))
        return CUDA_ERROR_OPERATING_SYSTEM;
    uintptr_t base = mapped_at(pid, &library);
    if (!base) return errno == EACCES ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_NOT_INITIALIZED;
    target->address = base + ((uintptr_t)&control - self.dlpi_addr);
    if (peek(target)) return is_alive(pid) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
    if (memcmp(target->seen.magic, CONTROL_MAGIC, sizeof CONTROL_MAGIC)) return CUDA_ERROR_OPERATING_SYSTEM;
    return target->seen.pid ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

/* The restore thread by the number it has here: inside its namespace that may be another. A
 * process that was only forked from one with CUDA has the memory, but not the thread. */
static int restore_thread_of(const struct target *target) {
    char path[PATH_TEXT], line[256];
    int found = 0;
    snprintf(path, sizeof path, "/proc/%d/task", target->pid);
    DIR *list = opendir(path);
    if (!list) return 0;
    for (struct dirent *entry; !found && (entry = readdir(list));) {
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/status", target->pid, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        while (file && fgets(line, sizeof line, file))
            if (!strncmp(line, "NSpid:", 6) && atoi(strrchr(line, '\t') + 1) == target->seen.restore_tid)
                found = atoi(entry->d_name);
        if (file) fclose(file);
    }
    closedir(list);
    return found;
}

/* Until the target has answered all it was asked; -1: it has ended. */
static int await_answer(struct target *target) {
    struct timespec pause = {0, 200000};
    for (;;) {
        if (peek(target)) return -1;
        if (target->seen.answered == target->seen.asked) return 0;
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < 5000000) pause.tv_nsec += 100000;
    }
}

static int wake(const struct target *target, int thread) {
    siginfo_t signal = {.si_signo = control_signal(), .si_code = SI_QUEUE};
    signal.si_pid = getpid();
    signal.si_uid = getuid();
    return (int)syscall(SYS_rt_tgsigqueueinfo, target->pid, thread, signal.si_signo, &signal);
}

static CUresult ask(struct target *target, const struct request *request) {
    char path[64];
    int thread = restore_thread_of(target);
    if (!thread) return CUDA_ERROR_NOT_INITIALIZED;
    /* One caller at a time; the lock ends with its process. */
    snprintf(path, sizeof path, "/proc/%d/maps", target->pid);
    int turn = open(path, O_RDONLY | O_CLOEXEC);
    if (turn < 0) return CUDA_ERROR_INVALID_VALUE;
    flock(turn, LOCK_EX);
    CUresult result = CUDA_ERROR_OPERATING_SYSTEM; /* where the target ends meanwhile */
    /* A caller before may have ended between its request and the signal for it. */
    if (!wake(target, thread) && !await_answer(target)) {
        uint32_t asked = target->seen.asked + 1;
        if (!poke(target, offsetof(struct control, request), request, sizeof *request) &&
            !poke(target, offsetof(struct control, asked), &asked, sizeof asked) &&
            !wake(target, thread) && !await_answer(target))
            result = target->seen.result;
    }
    close(turn);
    return result;
}

static CUresult perform(int pid, struct request *request, int *answer) {
    struct target target;
    struct machine machine;
    CUresult result;
    if (machine_read(&machine) || !machine_is_loaded(&machine)) return CUDA_ERROR_NOT_INITIALIZED;
    if (machine_branch(machine.installed) < CAN_CHECKPOINT) return CUDA_ERROR_NOT_SUPPORTED;
    if ((result = find(pid, &target))) return result;
    if (request->call == GET_STATE) {
        *answer = target.seen.state;
        return CUDA_SUCCESS;
    }
    if (request->call == GET_RESTORE_THREAD_ID) {
        *answer = restore_thread_of(&target);
        return *answer ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    }
    if (request->call == RESTORE && !process_is_ours())
        for (int index = 0; index < machine.count; index++)
            if (gpu_number(machine.gpus[index], "keeps") <= 0) return CUDA_ERROR_NOT_INITIALIZED;
    return ask(&target, request);
}

static CUresult make_call(int pid, struct request *request, int *answer) {
    const char *name = CALL_NAMES[request->call];
    uint64_t begin = now_ns();
    struct fault fault = fault_of(name, pid);
    char text[32];
    CUresult result;
    if (fault.kind == FAULT_HANG) trace_write(begin, pid, name, "hang");
    if (fault.kind == FAULT_HANG_TARGET) trace_write(begin, pid, name, "hang_target");
    if (fault.kind == FAULT_DIE_CALLER) trace_write(begin, pid, name, "die_caller");
    fault_apply_to_caller(fault);
    request->fault = fault.kind;
    result = fault.kind == FAULT_ERROR ? (CUresult)fault.value : perform(pid, request, answer);
    if (fault.kind == FAULT_ERROR_AFTER && !result) result = (CUresult)fault.value;
    snprintf(text, sizeof text, "%d", result);
    trace_write(begin, pid, name, text);
    return result;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state) {
    struct request request = {.call = GET_STATE};
    int answer = 0;
    if (!state) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = make_call(pid, &request, &answer);
    if (!result) *state = (CUprocessState)answer;
    return result;
}

CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
    struct request request = {.call = GET_RESTORE_THREAD_ID};
    int answer = 0;
    if (!tid) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = make_call(pid, &request, &answer);
    if (!result) *tid = answer;
    return result;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
    struct request request = {.call = LOCK, .timeout_ms = args ? args->timeoutMs : 0};
    return make_call(pid, &request, NULL);
}

CUresult cuCheckpointProcessCheckpoint(int pid, void *args) {
    struct request request = {.call = CHECKPOINT};
    (void)args;
    return make_call(pid, &request, NULL);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
    struct request request = {.call = RESTORE};
    if (args && args->gpuPairsCount) {
        if (!args->gpuPairs || args->gpuPairsCount > MOST_GPUS) return CUDA_ERROR_INVALID_VALUE;
        request.pairs = args->gpuPairsCount;
        memcpy(request.pair, args->gpuPairs, args->gpuPairsCount * sizeof *args->gpuPairs);
    }
    return make_call(pid, &request, NULL);
}

CUresult cuCheckpointProcessUnlock(int pid, void *args) {
    struct request request = {.call = UNLOCK};
    (void)args;
    return make_call(pid, &request, NULL);
}
