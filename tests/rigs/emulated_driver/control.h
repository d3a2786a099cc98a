/* The part of a CUDA process that another process reads and writes to drive its checkpoint. It
 * lies in the data of libcuda, so a dump of the process carries it. */
#ifndef PITSTOP_EMULATED_CONTROL_H
#define PITSTOP_EMULATED_CONTROL_H

#include <stdint.h>

#include "cuda.h"
#include "machine.h"

#define CONTROL_MAGIC "pitstop-cuda-01"

enum call { GET_STATE, GET_RESTORE_THREAD_ID, LOCK, CHECKPOINT, RESTORE, UNLOCK, CALLS };
extern const char *const CALL_NAMES[CALLS];

struct request {
    uint32_t call;
    uint32_t timeout_ms;
    int32_t fault; /* the kind of it that the process itself shall act out */
    uint32_t pairs;
    CUcheckpointGpuPair pair[MOST_GPUS];
};

struct control {
    char magic[16];
    volatile int32_t pid;         /* that called cuInit, in its own namespace; 0: nobody has */
    volatile int32_t restore_tid; /* in its own namespace */
    volatile int32_t state;
    volatile uint32_t asked;    /* grows with every request ... */
    volatile uint32_t answered; /* ... and this follows */
    volatile int32_t result;
    struct request request;
};

extern struct control control;

/* The signal that wakes the restore thread, which waits for it and blocks all others. */
int control_signal(void);

#endif
