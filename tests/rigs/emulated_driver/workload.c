/* A program with memory on GPUs, for tests: a parent without CUDA that serves HTTP, and one CUDA
 * process for every rank. What the ranks count lies on the GPUs alone.
 *
 *   GET /health     200 once all ranks are set up; needs no GPU
 *   GET /           JSON: "ready" and for every rank its pid, counter, and its GPUs with a digest of their content
 *   GET /content    JSON: for every rank and GPU its counter and digest, no names: the same after a move
 *   POST /          one step of every rank, then the same answer
 *   GET /memory/R/G the bytes on the G-th GPU of rank R
 *
 * Options: --port N, --address A (127.0.0.1), --processes N (1), --gpus N for each (1), --bytes N on
 * each GPU (65536), --uvm, --ipc, --kernel-ms N (every step submits a kernel that long),
 * --fork-after-init (rank 0 has a child that only inherits). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda.h"
#include "machine.h"

enum { MOST_RANKS = 64, TEXT = 1 << 16 };

static int port = 8000, processes = 1, gpus = 1, uvm, ipc, kernel_ms, forks;
static size_t bytes = 65536;
static const char *address = "127.0.0.1";
static int ranks[MOST_RANKS]; /* the parent's ends of the socket pairs */
static pthread_mutex_t turns[MOST_RANKS];

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    _exit(1);
}

static int send_all(int to, const void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t part = send(to, (const char *)data + done, size - done, MSG_NOSIGNAL);
        if (part <= 0) return -1;
        done += (size_t)part;
    }
    return 0;
}

static int receive_all(int from, void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t part = recv(from, (char *)data + done, size - done, 0);
        if (part <= 0) return -1;
        done += (size_t)part;
    }
    return 0;
}

/* ---- a rank ---- */

static struct {
    CUresult (*init)(unsigned int);
    CUresult (*context)(CUcontext *, unsigned int, CUdevice);
    CUresult (*current)(CUcontext);
    CUresult (*uuid)(CUuuid *, CUdevice);
    CUresult (*allocate)(CUdeviceptr *, size_t);
    CUresult (*allocate_managed)(CUdeviceptr *, size_t, unsigned int);
    CUresult (*handle)(CUipcMemHandle *, CUdeviceptr);
    CUresult (*put)(CUdeviceptr, const void *, size_t);
    CUresult (*get)(void *, CUdeviceptr, size_t);
    CUresult (*load)(CUmodule *, const void *);
    CUresult (*function)(CUfunction *, CUmodule, const char *);
    CUresult (*launch)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
                       unsigned int, unsigned int, CUstream, void **, void **);
} cu;

struct device {
    CUcontext context;
    CUdeviceptr memory;
    CUdevice ordinal;
};

static void check(CUresult result, const char *what) {
    if (result) fail("%s: CUDA error %d", what, result);
}

static void load_cuda(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) fail("%s", dlerror());
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"cuInit", &cu.init},
        {"cuCtxCreate_v2", &cu.context},
        {"cuCtxSetCurrent", &cu.current},
        {"cuDeviceGetUuid_v2", &cu.uuid},
        {"cuMemAlloc_v2", &cu.allocate},
        {"cuMemAllocManaged", &cu.allocate_managed},
        {"cuIpcGetMemHandle", &cu.handle},
        {"cuMemcpyHtoD_v2", &cu.put},
        {"cuMemcpyDtoH_v2", &cu.get},
        {"cuModuleLoadData", &cu.load},
        {"cuModuleGetFunction", &cu.function},
        {"cuLaunchKernel", &cu.launch},
    };
    for (size_t index = 0; index < sizeof functions / sizeof *functions; index++) {
        void *found = dlsym(library, functions[index].name);
        if (!found) fail("libcuda.so.1 lacks %s", functions[index].name);
        memcpy(functions[index].to, &found, sizeof found);
    }
}

/* The counter, then bytes that follow from rank, GPU and counter. */
static void fill(unsigned char *content, int rank, int gpu, uint64_t counter) {
    uint64_t word = counter * 0x9e3779b97f4a7c15u + (uint64_t)rank * 131 + (uint64_t)gpu + 1;
    memcpy(content, &counter, sizeof counter);
    for (size_t index = sizeof counter; index < bytes; index++) {
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        content[index] = (unsigned char)word;
    }
}

static uint64_t digest(const unsigned char *content) {
    uint64_t sum = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t index = 0; index < bytes; index++) sum = (sum ^ content[index]) * 0x100000001b3u;
    return sum;
}

static CUfunction sleeper(void) {
    CUmodule module;
    CUfunction function;
    check(cu.load(&module, "sleep_ms"), "cuModuleLoadData");
    check(cu.function(&function, module, "sleep_ms"), "cuModuleGetFunction");
    return function;
}

static void step(struct device *device, int rank, int gpu, CUfunction kernel, unsigned char *content) {
    uint64_t counter;
    unsigned int milliseconds = (unsigned int)kernel_ms;
    void *parameters[] = {&milliseconds};
    check(cu.current(device->context), "cuCtxSetCurrent");
    check(cu.get(&counter, device->memory, sizeof counter), "cuMemcpyDtoH");
    fill(content, rank, gpu, counter + 1);
    check(cu.put(device->memory, content, bytes), "cuMemcpyHtoD");
    if (kernel_ms) check(cu.launch(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL), "cuLaunchKernel");
}

/* {"rank", "pid", "gpus": [{"uuid", "counter", "digest", "intact"}]} of what is on the GPUs now;
 * bare: [["COUNTER DIGEST" ...] ...] */
static int describe(char *text, struct device *devices, int rank, int bare, unsigned char *content,
                    unsigned char *expected) {
    int length = bare ? snprintf(text, TEXT, "[")
                      : snprintf(text, TEXT, "{\"rank\": %d, \"pid\": %d, \"gpus\": [", rank, getpid());
    for (int gpu = 0; gpu < gpus; gpu++) {
        CUuuid uuid;
        uint64_t counter;
        check(cu.uuid(&uuid, devices[gpu].ordinal), "cuDeviceGetUuid");
        check(cu.get(content, devices[gpu].memory, bytes), "cuMemcpyDtoH");
        memcpy(&counter, content, sizeof counter);
        fill(expected, rank, gpu, counter);
        if (bare) {
            length += snprintf(text + length, (size_t)(TEXT - length), "%s\"%llu %016llx\"", gpu ? ", " : "",
                               (unsigned long long)counter, (unsigned long long)digest(content));
            continue;
        }
        length += snprintf(text + length, (size_t)(TEXT - length), "%s{\"uuid\": \"GPU-", gpu ? ", " : "");
        for (int index = 0; index < 16; index++)
            length += snprintf(text + length, (size_t)(TEXT - length), "%s%02x",
                               index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "",
                               uuid.bytes[index]);
        length += snprintf(text + length, (size_t)(TEXT - length),
                           "\", \"counter\": %llu, \"digest\": \"%016llx\", \"intact\": %s}",
                           (unsigned long long)counter, (unsigned long long)digest(content),
                           memcmp(content, expected, bytes) ? "false" : "true");
    }
    return length + snprintf(text + length, (size_t)(TEXT - length), bare ? "]" : "]}");
}

static void run_rank(int rank, int parent) {
    struct device devices[MOST_GPUS];
    CUfunction kernel;
    static char text[TEXT];
    unsigned char *content = malloc(bytes), *expected = malloc(bytes);
    unsigned char order[2];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!content || !expected) fail("no memory");
    load_cuda();
    check(cu.init(0), "cuInit");
    for (int gpu = 0; gpu < gpus; gpu++) {
        struct device *device = &devices[gpu];
        device->ordinal = rank * gpus + gpu;
        check(cu.context(&device->context, 0, device->ordinal), "cuCtxCreate");
        if (uvm) check(cu.allocate_managed(&device->memory, bytes, 1), "cuMemAllocManaged");
        else check(cu.allocate(&device->memory, bytes), "cuMemAlloc");
        CUipcMemHandle handle;
        if (ipc) check(cu.handle(&handle, device->memory), "cuIpcGetMemHandle");
        fill(content, rank, gpu, 0);
        check(cu.put(device->memory, content, bytes), "cuMemcpyHtoD");
    }
    kernel = sleeper();
    if (forks && rank == 0 && fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) pause();
    }
    order[0] = 1;
    if (send_all(parent, order, 1)) _exit(0); /* set up */
    while (!receive_all(parent, order, 2)) {
        if (order[0] == 'm') {
            check(cu.get(content, devices[order[1]].memory, bytes), "cuMemcpyDtoH");
            if (send_all(parent, content, bytes)) break;
            continue;
        }
        for (int gpu = 0; order[0] == 's' && gpu < gpus; gpu++) step(&devices[gpu], rank, gpu, kernel, content);
        uint32_t length = (uint32_t)describe(text, devices, rank, order[0] == 'c', content, expected);
        if (send_all(parent, &length, sizeof length) || send_all(parent, text, length)) break;
    }
    _exit(0);
}

/* ---- the parent ---- */

static void answer(int client, const char *status, const char *type, const void *body, size_t size) {
    char head[256];
    int length = snprintf(head, sizeof head,
                          "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                          status, type, size);
    if (!send_all(client, head, (size_t)length)) send_all(client, body, size);
}

static void answer_state(int client, char order) {
    char *text = malloc(TEXT * MOST_RANKS);
    size_t length = 0;
    if (!text) fail("no memory");
    length += (size_t)sprintf(text, "{\"ranks\": [");
    for (int rank = 0; rank < processes; rank++) {
        char request[2] = {order, 0};
        uint32_t size = 0;
        if (rank) length += (size_t)sprintf(text + length, ", ");
        pthread_mutex_lock(&turns[rank]);
        if (send_all(ranks[rank], request, 2) || receive_all(ranks[rank], &size, sizeof size) ||
            size >= TEXT || receive_all(ranks[rank], text + length, size))
            fail("rank %d is gone", rank);
        pthread_mutex_unlock(&turns[rank]);
        length += size;
    }
    length += (size_t)sprintf(text + length, "]}\n");
    answer(client, "200 OK", "application/json", text, length);
    free(text);
}

static void answer_memory(int client, int rank, int gpu) {
    char request[2] = {'m', (char)gpu};
    char *content = malloc(bytes);
    if (!content) fail("no memory");
    pthread_mutex_lock(&turns[rank]);
    if (send_all(ranks[rank], request, 2) || receive_all(ranks[rank], content, bytes))
        fail("rank %d is gone", rank);
    pthread_mutex_unlock(&turns[rank]);
    answer(client, "200 OK", "application/octet-stream", content, bytes);
    free(content);
}

static void *serve(void *argument) {
    int client = (int)(intptr_t)argument, rank, gpu;
    char request[4096] = "", method[8] = "", path[256] = "";
    size_t length = 0;
    while (length < sizeof request - 1 && !strstr(request, "\r\n\r\n")) {
        ssize_t part = recv(client, request + length, sizeof request - 1 - length, 0);
        if (part <= 0) break;
        length += (size_t)part;
        request[length] = 0;
    }
    if (sscanf(request, "%7s %255s", method, path) != 2) answer(client, "400 Bad Request", "text/plain", "", 0);
    else if (!strcmp(path, "/health")) answer(client, "200 OK", "text/plain", "ok\n", 3);
    else if (!strcmp(path, "/content")) answer_state(client, 'c');
    else if (!strcmp(path, "/")) answer_state(client, !strcmp(method, "POST") ? 's' : 'r');
    else if (sscanf(path, "/memory/%d/%d", &rank, &gpu) == 2 && rank >= 0 && rank < processes && gpu >= 0 &&
             gpu < gpus)
        answer_memory(client, rank, gpu);
    else answer(client, "404 Not Found", "text/plain", "", 0);
    close(client);
    return NULL;
}

static void *accept_all(void *argument) {
    int listener = (int)(intptr_t)argument;
    for (;;) {
        pthread_t thread;
        int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (client < 0) continue;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)client)) fail("no thread");
        pthread_detach(thread);
    }
    return NULL;
}

static int listen_at(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1) fail("no address: %s", address);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 64))
        fail("%s:%d: %s", address, port, strerror(errno));
    return listener;
}

static void read_options(int count, char **arguments) {
    static const struct option options[] = {
        {"port", 1, NULL, 'p'},      {"address", 1, NULL, 'a'},   {"processes", 1, NULL, 'n'},
        {"gpus", 1, NULL, 'g'},      {"bytes", 1, NULL, 'b'},     {"kernel-ms", 1, NULL, 'k'},
        {"uvm", 0, &uvm, 1},         {"ipc", 0, &ipc, 1},         {"fork-after-init", 0, &forks, 1},
        {NULL, 0, NULL, 0},
    };
    for (int option; (option = getopt_long(count, arguments, "", options, NULL)) >= 0;) {
        if (option == 'p') port = atoi(optarg);
        if (option == 'a') address = optarg;
        if (option == 'n') processes = atoi(optarg);
        if (option == 'g') gpus = atoi(optarg);
        if (option == 'b') bytes = strtoull(optarg, NULL, 10);
        if (option == 'k') kernel_ms = atoi(optarg);
        if (option == '?') fail("see the head of workload.c for the options");
    }
    if (processes < 1 || processes > MOST_RANKS || gpus < 1 || gpus > MOST_GPUS || bytes < 8)
        fail("1 to %d processes, 1 to %d GPUs each, 8 bytes or more", MOST_RANKS, MOST_GPUS);
}

int main(int count, char **arguments) {
    pthread_t thread;
    read_options(count, arguments);
    for (int rank = 0; rank < processes; rank++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) fail("socketpair: %s", strerror(errno));
        pthread_mutex_init(&turns[rank], NULL);
        pid_t child = fork();
        if (child < 0) fail("fork: %s", strerror(errno));
        if (child == 0) {
            for (int other = 0; other < rank; other++) close(ranks[other]);
            close(ends[0]);
            run_rank(rank, ends[1]);
        }
        close(ends[1]);
        ranks[rank] = ends[0];
    }
    for (int rank = 0; rank < processes; rank++) {
        char ready;
        if (receive_all(ranks[rank], &ready, 1)) fail("rank %d did not start", rank);
    }
    if (pthread_create(&thread, NULL, accept_all, (void *)(intptr_t)listen_at())) fail("no thread");
    /* A job whose rank has died is over. */
    int status;
    pid_t ended = wait(&status);
    fail("process %d ended with status %d", ended, status);
}
