/* What both libraries know of the emulated machine: its files below one directory.
 *
 * machine          "loaded VERSION", "installed VERSION", "cuda NUMBER", "device MAJOR:MINOR",
 *                  "context BYTES", and one "gpu UUID" for every GPU in CUDA's order
 * gpus/UUID/fields "KEY VALUE" a line; a value "!N" is NVML error N for that field alone
 * gpus/UUID/memory one file for every allocation, locked by the process that owns it
 * topology         one line of words for every GPU: X, NV18/SYS, PIX, SYS ...
 * faults/NUMBER    one line: CALL KIND VALUE PID NTH (0 = any); NUMBER.count: a byte a call
 * trace            one line for every checkpoint call: BEGIN END PID CALL RESULT
 */
#ifndef PITSTOP_EMULATED_MACHINE_H
#define PITSTOP_EMULATED_MACHINE_H

#include <stddef.h>
#include <stdint.h>

enum { MOST_GPUS = 16, UUID_TEXT = 48, LONG_TEXT = 256, PATH_TEXT = 512 };

struct machine {
    char loaded[32];    /* kernel module */
    char installed[32]; /* libraries */
    char device[32];    /* what the device nodes are */
    int cuda;           /* as cuDriverGetVersion says it: 13000 */
    uint64_t context;   /* bytes that a context takes on its GPU */
    int count;
    char gpus[MOST_GPUS][UUID_TEXT];
};

enum fault_kind {
    NO_FAULT,
    FAULT_ERROR,       /* return the value; nothing is done */
    FAULT_ERROR_AFTER, /* do it, then return the value */
    FAULT_HANG,        /* the call never returns */
    FAULT_HANG_TARGET, /* the process that is asked never answers */
    FAULT_DIE,         /* the process that is asked dies by SIGSEGV */
    FAULT_DIE_CALLER,  /* the calling process dies by SIGSEGV */
    FAULT_FAIL,        /* the process that is asked goes to the state `failed` */
    FAULT_OOM,         /* as if GPU memory were short */
    FAULT_SLOW         /* milliseconds more */
};

struct fault {
    enum fault_kind kind;
    long value;
};

/* PATH below the machine's directory */
void machine_path(char *path, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* 0, or -1: there is no such machine */
int machine_read(struct machine *machine);

/* Whether a kernel module is loaded */
int machine_is_loaded(const struct machine *machine);

/* The branch of a version: 580 of 580.105.08 */
int machine_branch(const char *version);

/* 0 and the value, -1: there is no such field, or N: it is set to NVML error N */
int gpu_field(const char *uuid, const char *key, char value[LONG_TEXT]);

/* As a number; -1 where it is none */
long long gpu_number(const char *uuid, const char *key);

/* One word of the topology; 0 or -1 */
int gpu_link(const struct machine *machine, int from, int to, char word[32]);

/* Lock a GPU's list of allocations while it is looked at or changed; a descriptor, or -1 */
int memory_lock(const char *uuid);
void memory_unlock(int lock);

struct owner {
    int pid; /* in the caller's pid namespace; 0 if it is not there */
    uint64_t bytes;
};

/* Who holds memory of a GPU, and how much in all. What nobody holds any more is freed.
 * Returns the number of owners, at most `most` of which are written. */
int memory_owners(const char *uuid, struct owner *owners, int most, uint64_t *used);

/* Make an allocation; its descriptor, or -1 with errno. `name` has room for PATH_TEXT. */
int memory_create(const char *uuid, uint64_t bytes, char *name);

/* The fault of this call, if a test has ordered one. Counts the call. */
struct fault fault_of(const char *call, int pid);

/* Do what a fault does to the caller: hang, die or wait; anything else it leaves. */
void fault_apply_to_caller(struct fault fault);

/* A true segmentation fault, without a core file. */
void crash(void) __attribute__((noreturn));

void trace_write(uint64_t begin, int pid, const char *call, const char *result);

uint64_t now_ns(void);
void sleep_ms(long milliseconds);

#endif
