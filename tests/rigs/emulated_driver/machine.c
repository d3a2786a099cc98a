#define _GNU_SOURCE
#include "machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *root(void) {
    const char *named = getenv("PITSTOP_EMULATED_GPUS");
    return named && *named ? named : "/run/pitstop-emulated-gpus";
}

void machine_path(char *path, const char *format, ...) {
    va_list arguments;
    int length = snprintf(path, PATH_TEXT, "%s/", root());
    va_start(arguments, format);
    if (length < PATH_TEXT) vsnprintf(path + length, PATH_TEXT - length, format, arguments);
    va_end(arguments);
}

static FILE *open_file(const char *name) {
    char path[PATH_TEXT];
    machine_path(path, "%s", name);
    return fopen(path, "re");
}

int machine_read(struct machine *machine) {
    char key[64], value[LONG_TEXT];
    FILE *file = open_file("machine");
    memset(machine, 0, sizeof *machine);
    if (!file) return -1;
    while (fscanf(file, "%63s %255[^\n]", key, value) == 2) {
        if (!strcmp(key, "loaded")) snprintf(machine->loaded, sizeof machine->loaded, "%.31s", value);
        if (!strcmp(key, "installed")) snprintf(machine->installed, sizeof machine->installed, "%.31s", value);
        if (!strcmp(key, "device")) snprintf(machine->device, sizeof machine->device, "%.31s", value);
        if (!strcmp(key, "cuda")) machine->cuda = atoi(value);
        if (!strcmp(key, "context")) machine->context = strtoull(value, NULL, 10);
        if (!strcmp(key, "gpu") && machine->count < MOST_GPUS)
            snprintf(machine->gpus[machine->count++], UUID_TEXT, "%.47s", value);
    }
    fclose(file);
    return 0;
}

int machine_is_loaded(const struct machine *machine) {
    return machine->loaded[0] && strcmp(machine->loaded, "none");
}

int machine_branch(const char *version) { return atoi(version); }

int gpu_field(const char *uuid, const char *key, char value[LONG_TEXT]) {
    char name[PATH_TEXT], found[64], text[LONG_TEXT];
    int answer = -1;
    snprintf(name, sizeof name, "gpus/%s/fields", uuid);
    FILE *file = open_file(name);
    if (!file) return -1;
    while (fscanf(file, "%63s %255[^\n]", found, text) == 2)
        if (!strcmp(found, key)) {
            snprintf(value, LONG_TEXT, "%s", text);
            answer = text[0] == '!' ? atoi(text + 1) : 0;
        }
    fclose(file);
    return answer;
}

long long gpu_number(const char *uuid, const char *key) {
    char value[LONG_TEXT];
    return gpu_field(uuid, key, value) == 0 ? atoll(value) : -1;
}

int gpu_link(const struct machine *machine, int from, int to, char word[32]) {
    FILE *file = open_file("topology");
    int read = 0;
    if (!file) return -1;
    for (int index = 0; index <= from * machine->count + to; index++) read = fscanf(file, "%31s", word);
    fclose(file);
    return read == 1 ? 0 : -1;
}

int memory_lock(const char *uuid) {
    char path[PATH_TEXT];
    machine_path(path, "gpus/%s/lock", uuid);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock >= 0 && flock(lock, LOCK_EX)) {
        close(lock);
        return -1;
    }
    return lock;
}

void memory_unlock(int lock) { close(lock); }

/* A descriptor that this process has of a file already, or -1. */
static int own_descriptor(const char *path) {
    struct stat wanted, status;
    int found = -1;
    if (stat(path, &wanted)) return -1;
    DIR *list = opendir("/proc/self/fd");
    if (!list) return -1;
    for (struct dirent *entry; (entry = readdir(list));) {
        int file = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || fstat(file, &status)) continue;
        if (status.st_ino == wanted.st_ino && status.st_dev == wanted.st_dev) found = file;
    }
    closedir(list);
    return found;
}

/* Record locks belong to a process, end with it, are not inherited, and the kernel tells their
 * owner's pid as the asker's namespace counts: just what a kernel driver knows of its clients.
 * But closing any descriptor of a file drops the process's lock, so its own are never opened
 * again. Returns 1 with pid and bytes, or 0: nobody holds it. */
static int holder_of(const char *path, struct owner *holder) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat status;
    int own = own_descriptor(path);
    int file = own >= 0 ? own : open(path, O_RDWR | O_CLOEXEC);
    int held = 0;
    if (file < 0) return 0;
    if (!fstat(file, &status) && !fcntl(file, F_GETLK, &lock)) {
        held = own >= 0 || lock.l_type != F_UNLCK;
        holder->pid = lock.l_type == F_UNLCK ? getpid() : lock.l_pid > 0 ? lock.l_pid : 0;
        holder->bytes = (uint64_t)status.st_size;
    }
    if (own < 0) close(file);
    return held;
}

int memory_owners(const char *uuid, struct owner *owners, int most, uint64_t *used) {
    char directory[PATH_TEXT], path[PATH_TEXT + LONG_TEXT + 2];
    int count = 0;
    *used = 0;
    machine_path(directory, "gpus/%s/memory", uuid);
    DIR *list = opendir(directory);
    if (!list) return 0;
    for (struct dirent *entry; (entry = readdir(list));) {
        struct owner holder;
        int index = 0;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (!holder_of(path, &holder)) {
            unlink(path);
            continue;
        }
        *used += holder.bytes;
        while (index < count && owners[index].pid != holder.pid) index++;
        if (index < count) owners[index].bytes += holder.bytes;
        else if (count < most) owners[count++] = holder;
    }
    closedir(list);
    return count;
}

int memory_create(const char *uuid, uint64_t bytes, char *name) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    uint64_t unique = 0;
    if (getrandom(&unique, sizeof unique, 0) != sizeof unique) return -1;
    machine_path(name, "gpus/%s/memory/%016llx", uuid, (unsigned long long)unique);
    int file = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0) return -1;
    if (ftruncate(file, (off_t)bytes) || fcntl(file, F_SETLK, &lock)) {
        close(file);
        unlink(name);
        return -1;
    }
    return file;
}

static const char *const KINDS[] = {"none", "error", "error_after", "hang", "hang_target", "die",
                                    "die_caller", "fail", "oom", "slow"};

/* Whether this call is the one that counts; every matching call is counted. */
static int is_due(const char *path, long nth) {
    char count[PATH_TEXT + LONG_TEXT + 16];
    struct stat status = {0};
    snprintf(count, sizeof count, "%s.count", path);
    int file = open(count, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return 1;
    flock(file, LOCK_EX);
    if (write(file, ".", 1) != 1 || fstat(file, &status)) status.st_size = 0;
    close(file);
    return nth == 0 || status.st_size == nth;
}

struct fault fault_of(const char *call, int pid) {
    struct fault found = {NO_FAULT, 0};
    char directory[PATH_TEXT], path[PATH_TEXT + LONG_TEXT + 2];
    machine_path(directory, "faults");
    DIR *list = opendir(directory);
    if (!list) return found;
    for (struct dirent *entry; (entry = readdir(list));) {
        char named[64], kind[32];
        long value, only_pid, nth;
        if (entry->d_name[0] == '.' || strchr(entry->d_name, '.')) continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        FILE *file = fopen(path, "re");
        if (!file) continue;
        int read = fscanf(file, "%63s %31s %ld %ld %ld", named, kind, &value, &only_pid, &nth);
        fclose(file);
        if (read != 5 || strcmp(named, call) || (only_pid && only_pid != pid)) continue;
        if (!is_due(path, nth)) continue;
        for (size_t index = 0; index < sizeof KINDS / sizeof *KINDS; index++)
            if (!strcmp(kind, KINDS[index])) found = (struct fault){(enum fault_kind)index, value};
    }
    closedir(list);
    return found;
}

void crash(void) {
    struct rlimit none = {0, 0};
    volatile int *nowhere = NULL;
    setrlimit(RLIMIT_CORE, &none);
    signal(SIGSEGV, SIG_DFL);
    for (;;) *nowhere = 1;
}

void fault_apply_to_caller(struct fault fault) {
    if (fault.kind == FAULT_SLOW) sleep_ms(fault.value);
    if (fault.kind == FAULT_DIE_CALLER) crash();
    while (fault.kind == FAULT_HANG) pause();
}

void trace_write(uint64_t begin, int pid, const char *call, const char *result) {
    char path[PATH_TEXT], line[LONG_TEXT];
    machine_path(path, "trace");
    int length = snprintf(line, sizeof line, "%llu %llu %d %s %s\n", (unsigned long long)begin,
                          (unsigned long long)now_ns(), pid, call, result);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (write(file, line, (size_t)length) != length) fputs("emulated driver: trace is cut\n", stderr);
    close(file);
}

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void sleep_ms(long milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&time, &time) && errno == EINTR) continue;
}
