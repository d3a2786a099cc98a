/* libnvidia-ml: what it says comes from the machine's files at each call. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "machine.h"

typedef int nvmlReturn_t;
typedef struct device {
    int index; /* in CUDA's order */
} *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
};

enum { MOST_LINKS = 18, MEMORY_V2 = 0x02000028 };

static int initialised;
static struct device handles[MOST_GPUS];

static const char *const TEXTS[] = {
    "Success",
    "Uninitialized",
    "Invalid Argument",
    "Not Supported",
    "Insufficient Permissions",
    "Already Initialized",
    "Not Found",
    "Insufficient Size",
    "Insufficient External Power",
    "Driver Not Loaded",
    "Timeout",
    "Interrupt Request Issue",
    "NVML Shared Library Not Found",
    "Function Not Found",
    "Corrupted infoROM",
    "GPU is lost",
    "GPU requires reset",
    "The operating system has blocked the request",
    "Driver/library version mismatch",
    "Operation cannot be performed because it is in use",
    "Insufficient Memory",
    "No data",
};

const char *nvmlErrorString(nvmlReturn_t result) {
    if (result >= 0 && (size_t)result < sizeof TEXTS / sizeof *TEXTS) return TEXTS[result];
    return "Unknown Error";
}

/* The fault that a test has ordered for a function; 0: none that returns */
static nvmlReturn_t fault_in(const char *function) {
    struct fault fault = fault_of(function, getpid());
    if (fault.kind == FAULT_DIE) crash();
    fault_apply_to_caller(fault);
    return fault.kind == FAULT_ERROR ? (nvmlReturn_t)fault.value : NVML_SUCCESS;
}

/* What every function begins with */
static nvmlReturn_t enter(const char *function, struct machine *machine) {
    nvmlReturn_t result = fault_in(function);
    if (result) return result;
    if (!initialised) return UNINITIALIZED;
    return machine_read(machine) ? UNKNOWN : NVML_SUCCESS;
}

/* ... and every function of a device: its UUID */
static nvmlReturn_t enter_device(const char *function, nvmlDevice_t device, struct machine *machine,
                                 const char **uuid) {
    char value[LONG_TEXT];
    nvmlReturn_t result = enter(function, machine);
    if (result) return result;
    if (!device || device->index < 0 || device->index >= machine->count) return INVALID_ARGUMENT;
    *uuid = machine->gpus[device->index];
    int lost = gpu_field(*uuid, "handle", value);
    return lost > 0 ? lost : NVML_SUCCESS;
}

static nvmlReturn_t text_field(const char *function, nvmlDevice_t device, const char *key, char *text,
                               unsigned int length) {
    struct machine machine;
    const char *uuid;
    char value[LONG_TEXT];
    nvmlReturn_t result = enter_device(function, device, &machine, &uuid);
    if (result) return result;
    int found = gpu_field(uuid, key, value);
    if (found) return found > 0 ? found : NOT_SUPPORTED;
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(text, value);
    return NVML_SUCCESS;
}

static nvmlReturn_t number_field(const char *function, nvmlDevice_t device, const char *key,
                                 unsigned long long *number) {
    char value[LONG_TEXT];
    nvmlReturn_t result = text_field(function, device, key, value, sizeof value);
    if (!result) *number = strtoull(value, NULL, 10);
    return result;
}

static nvmlReturn_t small_field(const char *function, nvmlDevice_t device, const char *key, unsigned int *number) {
    unsigned long long value = 0;
    nvmlReturn_t result = number_field(function, device, key, &value);
    if (!result) *number = (unsigned int)value;
    return result;
}

static nvmlReturn_t copy_text(const char *from, char *to, unsigned int length) {
    if (strlen(from) >= length) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

/* ---- the system ---- */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    struct machine machine;
    nvmlReturn_t result = fault_in("nvmlInit");
    (void)flags;
    if (result) return result;
    if (machine_read(&machine) || !machine_is_loaded(&machine)) return DRIVER_NOT_LOADED;
    if (strcmp(machine.loaded, machine.installed)) return LIB_RM_VERSION_MISMATCH;
    initialised++;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t result = fault_in("nvmlShutdown");
    if (result) return result;
    if (!initialised) return UNINITIALIZED;
    initialised--;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    struct machine machine;
    nvmlReturn_t result = enter(__func__, &machine);
    return result ? result : copy_text(machine.loaded, version, length);
}

/* The CUDA major version, then the driver's; it answers without a driver too (nvml.h) */
nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    struct machine machine;
    char text[64];
    nvmlReturn_t result = fault_in(__func__);
    if (result) return result;
    if (machine_read(&machine)) return UNKNOWN;
    snprintf(text, sizeof text, "%d.%s", machine.cuda / 1000, machine.installed);
    return copy_text(text, version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    struct machine machine;
    nvmlReturn_t result = enter(__func__, &machine);
    if (!result) *version = machine.cuda;
    return result;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* ---- finding a device ---- */

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    struct machine machine;
    nvmlReturn_t result = enter(__func__, &machine);
    if (!result) *count = (unsigned int)machine.count;
    return result;
}

static nvmlReturn_t hand_out(const struct machine *machine, int index, nvmlDevice_t *device) {
    char value[LONG_TEXT];
    int lost = gpu_field(machine->gpus[index], "handle", value);
    if (lost > 0) return lost;
    handles[index].index = index;
    *device = &handles[index];
    return NVML_SUCCESS;
}

/* NVML's order is that of PCI bus ids; CUDA's own is the order of the machine's file. */
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int wanted, nvmlDevice_t *device) {
    struct machine machine;
    char pci[MOST_GPUS][LONG_TEXT];
    nvmlReturn_t result = enter(__func__, &machine);
    if (result) return result;
    for (int index = 0; index < machine.count; index++)
        if (gpu_field(machine.gpus[index], "bus", pci[index])) return UNKNOWN;
    for (int index = 0; index < machine.count; index++) {
        unsigned int before = 0;
        for (int other = 0; other < machine.count; other++) before += strcmp(pci[other], pci[index]) < 0;
        if (before == wanted) return hand_out(&machine, index, device);
    }
    return INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    struct machine machine;
    nvmlReturn_t result = enter(__func__, &machine);
    if (result) return result;
    for (int index = 0; index < machine.count; index++)
        if (!strcmp(machine.gpus[index], uuid)) return hand_out(&machine, index, device);
    return NOT_FOUND;
}

/* ---- what a device is ---- */

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
    struct machine machine;
    const char *uuid;
    char own[LONG_TEXT], other[LONG_TEXT];
    nvmlReturn_t result = enter_device(__func__, device, &machine, &uuid);
    if (result) return result;
    *index = 0;
    if (gpu_field(uuid, "bus", own)) return UNKNOWN;
    for (int each = 0; each < machine.count; each++)
        *index += !gpu_field(machine.gpus[each], "bus", other) && strcmp(other, own) < 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length) {
    struct machine machine;
    const char *uuid;
    char value[LONG_TEXT];
    nvmlReturn_t result = enter_device(__func__, device, &machine, &uuid);
    if (result) return result;
    int error = gpu_field(uuid, "uuid", value); /* only ever there as an error */
    return error > 0 ? error : copy_text(uuid, text, length);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *text, unsigned int length) {
    return text_field(__func__, device, "name", text, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *text, unsigned int length) {
    return text_field(__func__, device, "serial", text, length);
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *text, unsigned int length) {
    return text_field(__func__, device, "vbios", text, length);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    char value[LONG_TEXT];
    nvmlReturn_t result = text_field(__func__, device, "capability", value, sizeof value);
    if (!result && sscanf(value, "%d.%d", major, minor) != 2) return UNKNOWN;
    return result;
}

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

static nvmlReturn_t fill_pci(const char *id, const char *device, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    if (sscanf(id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3) return UNKNOWN;
    snprintf(pci->busId, sizeof pci->busId, "%.31s", id);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff,
             pci->bus & 0xff, pci->device & 0xff);
    pci->pciDeviceId = (unsigned int)strtoul(device, NULL, 16);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    char id[LONG_TEXT], model[LONG_TEXT];
    nvmlReturn_t result = text_field(__func__, device, "pci", id, sizeof id);
    if (!result) result = text_field("", device, "pci_device", model, sizeof model);
    return result ? result : fill_pci(id, model, pci);
}

/* ---- its modes and readings ---- */

static nvmlReturn_t pair_field(const char *function, nvmlDevice_t device, const char *key, unsigned int *now,
                               unsigned int *pending) {
    nvmlReturn_t result = small_field(function, device, key, now);
    if (!result) *pending = *now;
    return result;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending) {
    return pair_field(__func__, device, "ecc", now, pending);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending) {
    return pair_field(__func__, device, "mig", now, pending);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned int *mode) {
    return small_field(__func__, device, "persistence", mode);
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned int *mode) {
    return small_field(__func__, device, "compute_mode", mode);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius) {
    (void)sensor;
    return small_field(__func__, device, "temperature", celsius);
}

nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts) {
    return small_field(__func__, device, "power", milliwatts);
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter,
                                         unsigned long long *errors) {
    (void)type, (void)counter;
    return number_field(__func__, device, "ecc_errors", errors);
}

/* ---- its memory ---- */

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

static uint64_t used_on(const char *uuid, struct owner *owners, int most, int *count) {
    uint64_t used = 0;
    int lock = memory_lock(uuid);
    *count = memory_owners(uuid, owners, most, &used);
    if (lock >= 0) memory_unlock(lock);
    return used;
}

static nvmlReturn_t memory_of(const char *function, nvmlDevice_t device, nvmlMemory_t *memory) {
    struct machine machine;
    const char *uuid;
    char value[LONG_TEXT];
    int count;
    nvmlReturn_t result = enter_device(function, device, &machine, &uuid);
    if (result) return result;
    int found = gpu_field(uuid, "memory", value);
    if (found) return found > 0 ? found : NOT_SUPPORTED;
    memory->total = strtoull(value, NULL, 10);
    memory->used = used_on(uuid, NULL, 0, &count);
    memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    return memory_of(__func__, device, memory);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlMemory_t plain;
    if (memory->version != MEMORY_V2) return ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = memory_of(__func__, device, &plain);
    if (result) return result;
    memory->total = plain.total;
    memory->free = plain.free;
    memory->used = plain.used;
    memory->reserved = 0;
    return NVML_SUCCESS;
}

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *room,
                                                     nvmlProcessInfo_t *processes) {
    struct machine machine;
    struct owner owners[256];
    const char *uuid;
    int count;
    nvmlReturn_t result = enter_device(__func__, device, &machine, &uuid);
    if (result) return result;
    if (!room) return INVALID_ARGUMENT;
    used_on(uuid, owners, 256, &count);
    unsigned int given = *room;
    *room = (unsigned int)count;
    if (!count) return NVML_SUCCESS;
    if (!processes || given < (unsigned int)count) return INSUFFICIENT_SIZE;
    for (int index = 0; index < count; index++)
        processes[index] = (nvmlProcessInfo_t){(unsigned int)owners[index].pid, owners[index].bytes, ~0u, ~0u};
    return NVML_SUCCESS;
}

/* ---- how devices are connected ---- */

static nvmlReturn_t enter_pair(const char *function, nvmlDevice_t one, nvmlDevice_t other, char word[32]) {
    struct machine machine;
    const char *uuid;
    nvmlReturn_t result = enter_device(function, one, &machine, &uuid);
    if (result) return result;
    if (!other || other->index < 0 || other->index >= machine.count) return INVALID_ARGUMENT;
    return gpu_link(&machine, one->index, other->index, word) ? UNKNOWN : NVML_SUCCESS;
}

/* The GPU at the other end of a link, by counting the links to all others in turn; -1: none */
static int peer_of(const struct machine *machine, int index, unsigned int link) {
    char word[32];
    unsigned int first = 0, count;
    for (int other = 0; other < machine->count; other++) {
        if (other == index || gpu_link(machine, index, other, word)) continue;
        if (sscanf(word, "NV%u", &count) != 1) continue;
        /* All links of a GPU to all others: a switch, which every one of them leads to. */
        if (count == MOST_LINKS) return other;
        if (link < first + count) return other;
        first += count;
    }
    return -1;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *active) {
    struct machine machine;
    const char *uuid;
    nvmlReturn_t result = enter_device(__func__, device, &machine, &uuid);
    if (result) return result;
    if (link >= MOST_LINKS) return INVALID_ARGUMENT;
    *active = peer_of(&machine, device->index, link) >= 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci) {
    struct machine machine;
    const char *uuid;
    char word[32], id[LONG_TEXT], model[LONG_TEXT];
    unsigned int count = 0;
    nvmlReturn_t result = enter_device(__func__, device, &machine, &uuid);
    if (result) return result;
    if (link >= MOST_LINKS) return INVALID_ARGUMENT;
    int peer = peer_of(&machine, device->index, link);
    if (peer < 0) return NOT_SUPPORTED;
    if (!gpu_link(&machine, device->index, peer, word) && sscanf(word, "NV%u", &count) == 1 &&
        count == MOST_LINKS) {
        snprintf(id, sizeof id, "00000000:%02X:00.0", 0x05 + link % 4); /* one of four switches */
        return fill_pci(id, "0x22A310DE", pci);
    }
    if (gpu_field(machine.gpus[peer], "bus", id) || gpu_field(machine.gpus[peer], "pci_device", model))
        return UNKNOWN;
    return fill_pci(id, model, pci);
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, int capability, int *status) {
    enum { CAPABILITY_NVLINK = 2, STATUS_OK = 0, STATUS_CHIPSET = 1, STATUS_NOT_SUPPORTED = 5 };
    char word[32];
    nvmlReturn_t result = enter_pair(__func__, one, other, word);
    if (result) return result;
    int linked = !strncmp(word, "NV", 2) || !strcmp(word, "X");
    int near = linked || !strcmp(word, "PIX") || !strcmp(word, "PXB") || !strcmp(word, "PHB");
    if (capability == CAPABILITY_NVLINK) *status = linked ? STATUS_OK : STATUS_NOT_SUPPORTED;
    else *status = near ? STATUS_OK : STATUS_CHIPSET;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, int *level) {
    static const struct {
        const char *word;
        int level;
    } LEVELS[] = {{"X", 0}, {"PIX", 10}, {"PXB", 20}, {"PHB", 30}, {"NODE", 40}, {"SYS", 50}};
    char word[32];
    nvmlReturn_t result = enter_pair(__func__, one, other, word);
    if (result) return result;
    const char *path = strchr(word, '/') ? strchr(word, '/') + 1 : word;
    for (size_t index = 0; index < sizeof LEVELS / sizeof *LEVELS; index++)
        if (!strcmp(path, LEVELS[index].word)) {
            *level = LEVELS[index].level;
            return NVML_SUCCESS;
        }
    return UNKNOWN;
}
