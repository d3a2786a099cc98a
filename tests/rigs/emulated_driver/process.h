/* A process that uses the emulated GPUs: what libcuda knows of its own process. */
#ifndef PITSTOP_EMULATED_PROCESS_H
#define PITSTOP_EMULATED_PROCESS_H

#include <pthread.h>

#include "control.h"

struct seen {
    char uuid[UUID_TEXT];
    char name[LONG_TEXT];
};

struct allocation {
    struct allocation *next;
    CUdeviceptr base;
    uint64_t size;
    int gpu;              /* index into `gpus` */
    int is_context;       /* driver's own memory: nothing in it that would have to be kept */
    int file;             /* on the GPU; -1 while checkpointed */
    char path[PATH_TEXT]; /* of that file */
    void *saved;          /* in host memory, while checkpointed */
};

struct process {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int inside;          /* calls of the program that are going on */
    int closed;          /* new calls have to wait */
    uint64_t busy_until; /* when the submitted kernels will have ended */
    int branch;          /* of the kernel module that was loaded at cuInit */
    int gpu_count;       /* all that the kernel module drives, visible to the program or not */
    struct seen gpus[MOST_GPUS];
    int visible_count;
    int visible[MOST_GPUS];     /* CUDA's ordinal -> index into `gpus` */
    int devices[MOST_GPUS + 2]; /* descriptors of device nodes; -1: none */
    int uses_uvm, uses_ipc;     /* ever: the driver does not forget it either */
    int is_stuck;               /* a restore ran out of memory once (cuda-checkpoint#44) */
    CUdeviceptr next_base;
    struct allocation *allocations;
};

extern struct process process;

/* Begin and end of every call that a program makes. `enter` waits while the process is locked. */
CUresult process_enter(void);
CUresult process_leave(CUresult result);

/* Whether this process called cuInit itself, and is no fork of one that did */
int process_is_ours(void);

int devices_open(void);
void devices_close(void);

/* With the mutex of the process held. */
struct allocation *allocation_new(int gpu, uint64_t size, int is_context, CUresult *result);
void allocation_free(struct allocation *allocation);

uint64_t gpu_free_bytes(const char *uuid);

void uuid_to_text(const CUuuid *uuid, char text[UUID_TEXT]);
void uuid_from_text(const char *text, CUuuid *uuid);

/* The thread that does what other processes ask for. */
int restore_thread_start(void);

#endif
