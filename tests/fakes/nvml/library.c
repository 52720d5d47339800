/* libnvidia-ml.so.1 as a scenario file wants it: what gpudeck, gpustat and nvitop call, in the layouts of nvml.h. */
#include "scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct device *handle;

#define ENTER(device)                                                                                                  \
    do {                                                                                                               \
        int code_ = enter(__func__, device);                                                                           \
        if (code_ != SUCCESS)                                                                                          \
            return code_;                                                                                              \
    } while (0)

static int copy_text(char *to, unsigned size, const char *text)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    memcpy(to, text, strlen(text) + 1);
    return SUCCESS;
}

static int take_unsigned(handle device, const char *name, unsigned *value)
{
    number found = 0;
    int code = take(device, name, &found);
    *value = (unsigned)found;
    return code;
}

/* The driver as a whole. */

static int open_driver(void)
{
    set_open(1);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    ENTER(NULL);
    return open_driver();
}

int nvmlInit_v2(void)
{
    ENTER(NULL);
    return open_driver();
}

int nvmlShutdown(void)
{
    ENTER(NULL);
    set_open(0);
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    (void)code;
    return "as the scenario says";
}

int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    ENTER(NULL);
    return copy_text(text, size, driver_version());
}

int nvmlSystemGetNVMLVersion(char *text, unsigned size)
{
    ENTER(NULL);
    return copy_text(text, size, driver_version());
}

int nvmlSystemGetCudaDriverVersion(int *cuda)
{
    ENTER(NULL);
    *cuda = 13000;
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *cuda)
{
    ENTER(NULL);
    *cuda = 13000;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER(NULL);
    *count = (unsigned)board_count();
    return SUCCESS;
}

/* Finding and naming devices. */

static int find(const char *function, handle found, handle *device)
{
    *device = found;
    return found ? enter(function, found) : NOT_FOUND;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device)
{
    ENTER(NULL);
    return find_board((int)index) ? find(__func__, find_board((int)index), device) : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, handle *device)
{
    ENTER(NULL);
    return find(__func__, find_by_uuid(uuid), device);
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, handle *device)
{
    ENTER(NULL);
    for (int i = 0; i < board_count(); i++)
        if (!strcmp(find_board(i)->pci, pci))
            return find(__func__, find_board(i), device);
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(handle device, char *text, unsigned size)
{
    ENTER(device);
    return copy_text(text, size, device->uuid);
}

int nvmlDeviceGetName(handle device, char *text, unsigned size)
{
    ENTER(device);
    return copy_text(text, size, device->name);
}

int nvmlDeviceGetIndex(handle device, unsigned *index)
{
    ENTER(device);
    *index = (unsigned)(device->parent ? device->slot : device->index);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(handle device, unsigned *minor)
{
    ENTER(device);
    *minor = (unsigned)device->index;
    return SUCCESS;
}

struct pci {
    char legacy_id[16];
    unsigned domain, bus, device, id, subsystem;
    char id_text[32];
};

int nvmlDeviceGetPciInfo_v3(handle device, struct pci *pci)
{
    ENTER(device);
    memset(pci, 0, sizeof *pci);
    sscanf(device->pci, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->legacy_id, sizeof pci->legacy_id, "%04X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    return copy_text(pci->id_text, sizeof pci->id_text, device->pci);
}

/* Functions that give one number. */

#define NUMBER(function, type, name)                                                                                   \
    int function(handle device, type *value)                                                                           \
    {                                                                                                                  \
        number found = 0;                                                                                              \
        ENTER(device);                                                                                                 \
        int code = take(device, name, &found);                                                                         \
        *value = (type)found;                                                                                          \
        return code;                                                                                                   \
    }

NUMBER(nvmlDeviceGetPowerUsage, unsigned, "power")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit")
NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, "power_limit")
NUMBER(nvmlDeviceGetFanSpeed, unsigned, "fan")
NUMBER(nvmlDeviceGetPerformanceState, unsigned, "performance_state")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, number, "clock_reasons")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, number, "clock_reasons")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, number, "energy")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_generation")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_generation_max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width_max")
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence_mode")
NUMBER(nvmlDeviceGetComputeMode, unsigned, "compute_mode")
NUMBER(nvmlDeviceGetDisplayActive, unsigned, "display_active")
NUMBER(nvmlDeviceGetDisplayMode, unsigned, "display_mode")
NUMBER(nvmlDeviceGetGpuInstanceId, unsigned, "gpu_instance")
NUMBER(nvmlDeviceGetComputeInstanceId, unsigned, "compute_instance")
NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, "mig_slots")

/* Functions that give a number for an argument. */

int nvmlDeviceGetTemperature(handle device, int sensor, unsigned *celsius)
{
    ENTER(device);
    return sensor ? INVALID_ARGUMENT : take_unsigned(device, "temperature", celsius);
}

struct temperature {
    unsigned version, sensor;
    int celsius;
};

int nvmlDeviceGetTemperatureV(handle device, struct temperature *temperature)
{
    ENTER(device);
    return take_unsigned(device, "temperature", (unsigned *)&temperature->celsius);
}

static int take_clock(handle device, unsigned clock, unsigned *megahertz)
{
    static const char *const NAMES[] = {"clock_sm", "clock_sm", "clock_memory", "clock_video"};
    return clock < 4 ? take_unsigned(device, NAMES[clock], megahertz) : INVALID_ARGUMENT;
}

int nvmlDeviceGetClockInfo(handle device, unsigned clock, unsigned *megahertz)
{
    ENTER(device);
    return take_clock(device, clock, megahertz);
}

int nvmlDeviceGetMaxClockInfo(handle device, unsigned clock, unsigned *megahertz)
{
    ENTER(device);
    return take_clock(device, clock, megahertz);
}

int nvmlDeviceGetTotalEccErrors(handle device, unsigned type, unsigned counter, number *count)
{
    static const char *const NAMES[2][2] = {{"ecc_corrected", "ecc_uncorrected"},
                                            {"ecc_corrected_ever", "ecc_uncorrected_ever"}};
    ENTER(device);
    return type < 2 && counter < 2 ? take(device, NAMES[counter][type], count) : INVALID_ARGUMENT;
}

/* One call a direction, and some 20 ms each on a real card. */
int nvmlDeviceGetPcieThroughput(handle device, unsigned counter, unsigned *kilobytes)
{
    ENTER(device);
    return take_unsigned(device, counter ? "pcie_receive" : "pcie_transmit", kilobytes);
}

/* Links that are up are bits of "nvlinks_up"; there are "nvlinks" of them. */
int nvmlDeviceGetNvLinkState(handle device, unsigned link, unsigned *is_active)
{
    number links = 0, up = 0;
    ENTER(device);
    if (take(device, "nvlinks", &links) || take(device, "nvlinks_up", &up))
        return NOT_SUPPORTED;
    *is_active = (unsigned)(up >> link & 1);
    return link < links ? SUCCESS : INVALID_ARGUMENT;
}

/* Functions that give several numbers. */

static int take_load(handle device, const char *name, unsigned *percent, unsigned *period)
{
    *period = 167000;
    return take_unsigned(device, name, percent);
}

int nvmlDeviceGetEncoderUtilization(handle device, unsigned *percent, unsigned *period)
{
    ENTER(device);
    return take_load(device, "encoder", percent, period);
}

int nvmlDeviceGetDecoderUtilization(handle device, unsigned *percent, unsigned *period)
{
    ENTER(device);
    return take_load(device, "decoder", percent, period);
}

int nvmlDeviceGetUtilizationRates(handle device, unsigned *rates)
{
    ENTER(device);
    int code = take_unsigned(device, "utilization", &rates[0]);
    return code ? code : take_unsigned(device, "memory_utilization", &rates[1]);
}

struct memory {
    number total, reserved, used;
};

static int take_memory(handle device, struct memory *memory)
{
    memory->reserved = 0;
    take(device, "memory_reserved", &memory->reserved);
    int code = take(device, "memory_total", &memory->total);
    return code ? code : take(device, "memory_used", &memory->used);
}

/* Version 1 counts what the driver keeps for itself as used. */
int nvmlDeviceGetMemoryInfo(handle device, number *answer)
{
    struct memory memory;
    ENTER(device);
    int code = take_memory(device, &memory);
    if (code)
        return code;
    answer[0] = memory.total;
    answer[2] = memory.used + memory.reserved;
    answer[1] = answer[0] - answer[2];
    return SUCCESS;
}

struct memory_v2 {
    unsigned version;
    number total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *answer)
{
    struct memory memory;
    ENTER(device);
    if (answer->version != (sizeof *answer | 2 << 24))
        return ARGUMENT_VERSION_MISMATCH;
    int code = take_memory(device, &memory);
    if (code)
        return code;
    answer->total = memory.total;
    answer->reserved = memory.reserved;
    answer->used = memory.used;
    answer->free = memory.total - memory.used - memory.reserved;
    return SUCCESS;
}

int nvmlDeviceGetBAR1MemoryInfo(handle device, number *answer)
{
    ENTER(device);
    answer[0] = 256ULL << 30;
    answer[2] = 1ULL << 20;
    answer[1] = answer[0] - answer[2];
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor)
{
    ENTER(device);
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(handle device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    ENTER(device);
    *failed = 0;
    int code = take_unsigned(device, "remapped_corrected", corrected);
    code = code ? code : take_unsigned(device, "remapped_uncorrected", uncorrected);
    return code ? code : take_unsigned(device, "remapped_pending", pending);
}

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type, code;
    number value;
};

/* Replays or recoveries of one link: "nvlink_replays_3", or else "nvlink_replays" of each link that there is. */
static int take_link_errors(handle device, const char *kind, unsigned link, number *errors)
{
    char name[64];
    number links = 0;
    if (take(device, "nvlinks", &links) || link >= links)
        return NOT_SUPPORTED;
    snprintf(name, sizeof name, "%s_%u", kind, link);
    return take(device, name, errors) ? take(device, kind, errors) : SUCCESS;
}

static int take_field(handle device, struct field *field)
{
    switch (field->id) {
    case 52:
        return take(device, "nvlink_replays_in_total", &field->value);
    case 59:
        return take(device, "nvlink_recoveries_in_total", &field->value);
    case 82:
        return take(device, "memory_temperature", &field->value);
    case 91:
        return take(device, "nvlinks", &field->value);
    case 161:
        field->type = 3;
        return take_link_errors(device, "nvlink_replays", field->scope, &field->value);
    case 162:
        return take_link_errors(device, "nvlink_recoveries", field->scope, &field->value);
    }
    return NOT_SUPPORTED;
}

struct margin {
    unsigned version;
    int degrees;
};

int nvmlDeviceGetMarginTemperature(handle device, struct margin *margin)
{
    ENTER(device);
    if (margin->version != (sizeof *margin | 1 << 24))
        return ARGUMENT_VERSION_MISMATCH;
    return take_unsigned(device, "temperature_margin", (unsigned *)&margin->degrees);
}

int nvmlDeviceGetTemperatureThreshold(handle device, int threshold, unsigned *degrees)
{
    ENTER(device);
    return threshold == 1 ? take_unsigned(device, "slowdown_temperature", degrees) : NOT_SUPPORTED;
}

/* The call succeeds whenever the device does; each field has a code of its own, and an undefined value without it. */
int nvmlDeviceGetFieldValues(handle device, int count, struct field *fields)
{
    ENTER(device);
    for (int i = 0; i < count; i++) {
        fields[i].type = 1;
        fields[i].value = 0;
        fields[i].code = take_field(device, &fields[i]);
    }
    return SUCCESS;
}

/* What other tools ask for and no Linux server card gives. */

#define NEVER(function)                                                                                                \
    int function(handle device)                                                                                        \
    {                                                                                                                  \
        ENTER(device);                                                                                                 \
        return NOT_SUPPORTED;                                                                                          \
    }

NEVER(nvmlDeviceGetDriverModel)
NEVER(nvmlDeviceGetDriverModel_v2)
NEVER(nvmlDeviceGetSerial)
NEVER(nvmlDeviceGetConfComputeMemSizeInfo)
NEVER(nvmlDeviceGetRunningProcessDetailList)

/* Processes. */

struct process_row {
    unsigned pid;
    number memory;
    unsigned gpu_instance, compute_instance;
};

static int list(handle device, char kind, unsigned *count, struct process_row *rows)
{
    unsigned room = *count, found = 0;
    for (int i = 0; i < device->process_count; i++) {
        if (device->processes[i].kind != kind)
            continue;
        if (rows && found < room)
            rows[found] = (struct process_row){device->processes[i].pid, device->processes[i].memory, ~0U, ~0U};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define PROCESS_LIST(function, kind)                                                                                   \
    int function(handle device, unsigned *count, struct process_row *rows)                                             \
    {                                                                                                                  \
        ENTER(device);                                                                                                 \
        return list(device, kind, count, rows);                                                                        \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'c')
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'c')
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'g')
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'g')
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'm')

struct sample_row {
    unsigned pid;
    number time;
    unsigned sm, memory, encoder, decoder;
};

/* Only samples after `since`, as the driver gives them: from 0 on, its whole buffer. Asked for the room that it needs, an
   H200 with driver 580 says 72 rows even when it then has none. With "stale_samples" it returns older ones too. */
int nvmlDeviceGetProcessUtilization(handle device, struct sample_row *rows, unsigned *count, number since)
{
    unsigned room = *count, found = 0;
    number has_stale = 0;
    ENTER(device);
    take(device, "stale_samples", &has_stale);
    for (int i = 0; i < device->sample_count; i++) {
        const struct sample *sample = &device->samples[i];
        if (sample->time <= since && !has_stale)
            continue;
        if (rows && found < room)
            rows[found] = (struct sample_row){sample->pid, sample->time, sample->utilization, 0, 0, 0};
        found++;
    }
    *count = rows ? found : found > 72 ? found : 72;
    return !rows || found > room ? INSUFFICIENT_SIZE : found ? SUCCESS : NOT_FOUND;
}

/* Events: XIDs alone, and one set for all. A device that is lost still tells. */

struct event {
    handle device;
    number type, data;
    unsigned gpu_instance, compute_instance;
};

enum { XID_EVENT = 8 };

int nvmlEventSetCreate(void **set)
{
    static int only;
    ENTER(NULL);
    *set = &only;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(handle device, number types, void *set)
{
    (void)set;
    ENTER(device);
    if (types & XID_EVENT)
        listen_to(device);
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds)
{
    unsigned code = 0;
    (void)set, (void)milliseconds;
    ENTER(NULL);
    handle device = hear(&code);
    *event = (struct event){device, XID_EVENT, code, ~0U, ~0U};
    return event->device ? SUCCESS : TIMEOUT;
}

int nvmlEventSetFree(void *set)
{
    (void)set;
    ENTER(NULL);
    listen_to_nobody();
    return SUCCESS;
}

/* MIG. A board with "mig_slots" is in MIG mode; the slots need not be filled. */

int nvmlDeviceGetMigMode(handle device, unsigned *current, unsigned *pending)
{
    number slots;
    ENTER(device);
    if (device->parent)
        return INVALID_ARGUMENT;
    *current = *pending = take(device, "mig_slots", &slots) == SUCCESS;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle device, unsigned slot, handle *instance)
{
    ENTER(device);
    *instance = find_instance(device, (int)slot);
    return *instance ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceIsMigDeviceHandle(handle device, unsigned *is_instance)
{
    ENTER(device);
    *is_instance = device->parent != NULL;
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle device, handle *board)
{
    ENTER(device);
    *board = device->parent;
    return device->parent ? SUCCESS : INVALID_ARGUMENT;
}

/* GPM. A sample has sums of what each metric's value was at every sample of its device so far, and how many there were:
   the metrics of two are the mean of what came after the first. "gpm" says whether the device supports it; the value
   "gpm_2" is the metric with id 2, in thousandths. */

enum { GPM_METRICS = 128 };

struct gpm_sample {
    handle device;
    number count, sums[GPM_METRICS];
    int is_known[GPM_METRICS];
};

static struct gpm_sample gpm_now[DEVICES];

static struct gpm_sample *gpm_state(handle device)
{
    int i = 0;
    while (i < DEVICES - 1 && gpm_now[i].device && gpm_now[i].device != device)
        i++;
    gpm_now[i].device = device;
    return &gpm_now[i];
}

struct gpm_support {
    unsigned version, is_supported;
};

int nvmlGpmQueryDeviceSupport(handle device, struct gpm_support *support)
{
    number is_supported = 0;
    ENTER(device);
    if (support->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    take(device, "gpm", &is_supported);
    support->is_supported = (unsigned)is_supported;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    ENTER(NULL);
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    ENTER(NULL);
    free(sample);
    return SUCCESS;
}

static int take_gpm_sample(handle device, struct gpm_sample *sample)
{
    struct gpm_sample *state = gpm_state(device);
    state->count++;
    for (int i = 0; i < GPM_METRICS; i++) {
        char name[16];
        number value = 0;
        snprintf(name, sizeof name, "gpm_%d", i);
        state->is_known[i] = take(device, name, &value) == SUCCESS;
        state->sums[i] += value;
    }
    *sample = *state;
    return SUCCESS;
}

int nvmlGpmSampleGet(handle device, struct gpm_sample *sample)
{
    number slots;
    ENTER(device);
    return take(device, "mig_slots", &slots) ? take_gpm_sample(device, sample) : NOT_SUPPORTED;
}

int nvmlGpmMigSampleGet(handle device, unsigned gpu_instance, struct gpm_sample *sample)
{
    ENTER(device);
    for (int slot = 0; slot < DEVICES; slot++) {
        handle instance = find_instance(device, slot);
        number id = 0;
        if (instance && take(instance, "gpu_instance", &id) == SUCCESS && id == gpu_instance) {
            ENTER(instance);
            return take_gpm_sample(instance, sample);
        }
    }
    return INVALID_ARGUMENT;
}

struct gpm_metric {
    unsigned id;
    int code;
    double value;
    const char *names[3];
};

struct gpm_request {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};

int nvmlGpmMetricsGet(struct gpm_request *request)
{
    const struct gpm_sample *first = request->first, *second = request->second;
    ENTER(second->device);
    if (request->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    if (first->device != second->device || first->count >= second->count)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < request->count; i++) {
        struct gpm_metric *metric = &request->metrics[i];
        metric->code = metric->id < GPM_METRICS && second->is_known[metric->id] ? SUCCESS : NOT_SUPPORTED;
        if (!metric->code)
            metric->value = (double)(second->sums[metric->id] - first->sums[metric->id]) /
                            (double)(second->count - first->count) / 1000.0;
    }
    return SUCCESS;
}
