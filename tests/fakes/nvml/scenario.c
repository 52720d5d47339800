#define _GNU_SOURCE
#include "scenario.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct device devices[DEVICES];
static struct device driver; /* holds what concerns no device: failures of the whole driver */
static int device_count, present_boards, is_open;
static char version[TEXT];
static struct stat read_from;

static const struct {
    const char *word;
    int code;
} CODES[] = {
    {"uninitialized", UNINITIALIZED},
    {"invalid_argument", INVALID_ARGUMENT},
    {"not_supported", NOT_SUPPORTED},
    {"no_permission", 4},
    {"not_found", NOT_FOUND},
    {"driver_not_loaded", DRIVER_NOT_LOADED},
    {"timeout", TIMEOUT},
    {"library_not_found", 12},
    {"function_not_found", 13},
    {"lost", GPU_IS_LOST},
    {"reset_required", 16},
    {"mismatch", LIB_RM_VERSION_MISMATCH},
    {"no_data", 21},
    {"argument_version_mismatch", ARGUMENT_VERSION_MISMATCH},
    {"unknown", 999},
    {"hang", HANG},
};

static void refuse(const char *line)
{
    fprintf(stderr, "fake NVML: cannot read this line of the scenario: %s\n", line);
    abort();
}

static int code_of(const char *word, const char *line)
{
    for (size_t i = 0; i < sizeof CODES / sizeof *CODES; i++)
        if (!strcmp(CODES[i].word, word))
            return CODES[i].code;
    refuse(line);
    return 0;
}

/* `max` is 2^64-1, NVML's "not available". */
static number number_of(const char *word)
{
    return strcmp(word, "max") ? strtoull(word, NULL, 0) : ~0ULL;
}

static struct device *open_device(const char *uuid, const char *line)
{
    struct device *device = find_by_uuid(uuid);
    if (!device) {
        if (device_count == DEVICES)
            refuse(line);
        device = &devices[device_count++];
        snprintf(device->uuid, TEXT, "%s", uuid);
    }
    device->is_present = 1;
    device->value_count = device->process_count = device->sample_count = device->failure_count = device->xid_count = 0;
    return device;
}

static void add_value(struct device *device, const char *name, char *rest, const char *line)
{
    if (device->value_count == VALUES)
        refuse(line);
    struct value *value = &device->values[device->value_count++];
    snprintf(value->name, TEXT, "%s", name);
    value->count = value->next = 0;
    for (char *word = strtok(rest, " "); word && value->count < STEPS; word = strtok(NULL, " "))
        value->steps[value->count++] = number_of(word);
    if (!value->count)
        refuse(line);
}

static void add_process(struct device *device, const char *rest, const char *line)
{
    char kind[16], memory[32];
    struct process *process = &device->processes[device->process_count];
    if (device->process_count == PROCESSES || sscanf(rest, "%15s %u %31s", kind, &process->pid, memory) != 3)
        refuse(line);
    process->kind = kind[0];
    process->memory = number_of(memory);
    device->process_count++;
}

static void add_sample(struct device *device, const char *rest, const char *line)
{
    struct sample *sample = &device->samples[device->sample_count];
    if (device->sample_count == PROCESSES ||
        sscanf(rest, "%u %llu %u", &sample->pid, &sample->time, &sample->utilization) != 3)
        refuse(line);
    device->sample_count++;
}

static void add_failure(struct device *device, const char *rest, const char *line)
{
    char word[TEXT];
    struct failure *failure = &device->failures[device->failure_count];
    if (device->failure_count == FAILURES || sscanf(rest, "%95s %95s", failure->function, word) != 2)
        refuse(line);
    failure->code = code_of(word, line);
    device->failure_count++;
}

static void add_xid(struct device *device, const char *rest, const char *line)
{
    struct xid *xid = &device->xids[device->xid_count];
    if (device->xid_count == XIDS || sscanf(rest, "%u %u", &xid->number, &xid->code) != 2)
        refuse(line);
    device->xid_count++;
}

/* The device that the following lines are about. */
static struct device *read_line(struct device *device, struct device **board, char *line)
{
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", line);
    char *rest = line + strcspn(line, " ");
    if (*rest)
        *rest++ = 0;
    if (!strcmp(line, "gpu")) {
        device = *board = open_device(rest, copy);
        device->parent = NULL;
        device->index = present_boards++;
    } else if (!strcmp(line, "instance")) {
        char uuid[TEXT];
        int slot;
        if (!*board || sscanf(rest, "%d %95s", &slot, uuid) != 2)
            refuse(copy);
        device = open_device(uuid, copy);
        device->parent = *board;
        device->slot = slot;
    } else if (!strcmp(line, "driver"))
        snprintf(version, TEXT, "%s", rest);
    else if (!strcmp(line, "name"))
        snprintf(device->name, TEXT, "%s", rest);
    else if (!strcmp(line, "pci"))
        snprintf(device->pci, TEXT, "%s", rest);
    else if (!strcmp(line, "process"))
        add_process(device, rest, copy);
    else if (!strcmp(line, "sample"))
        add_sample(device, rest, copy);
    else if (!strcmp(line, "xid"))
        add_xid(device, rest, copy);
    else if (!strcmp(line, "fail"))
        add_failure(device, rest, copy);
    else
        add_value(device, line, rest, copy);
    return device;
}

static void read_scenario(FILE *file)
{
    char line[1024];
    struct device *device = &driver, *board = NULL;
    for (int i = 0; i < device_count; i++)
        devices[i].is_present = 0;
    present_boards = driver.value_count = driver.failure_count = 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] && line[0] != '#')
            device = read_line(device, &board, line);
    }
}

static int is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Writers replace the file in one step, so it is never seen half written. */
static void look_at_the_scenario(void)
{
    struct stat now;
    const char *path = getenv("GPUDECK_FAKE_NVML");
    if (!path || stat(path, &now) || is_same(&now, &read_from))
        return;
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    fstat(fileno(file), &read_from);
    read_scenario(file);
    fclose(file);
}

static void note_call(const char *function)
{
    const char *path = getenv("GPUDECK_FAKE_NVML_CALLS");
    int log = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (log < 0)
        return;
    dprintf(log, "%s\n", function);
    close(log);
}

/* "values" stands for every function but those by which a device is found and named. */
static int is_meant(const char *pattern, const char *function)
{
    static const char *const NAMING[] = {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName",
                                         "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetIndex"};
    if (!strcmp(pattern, "*") || !strcmp(pattern, function))
        return 1;
    if (strcmp(pattern, "values"))
        return 0;
    for (size_t i = 0; i < sizeof NAMING / sizeof *NAMING; i++)
        if (!strcmp(NAMING[i], function))
            return 0;
    return 1;
}

static int failure_of(const struct device *device, const char *function)
{
    for (int i = 0; i < device->failure_count; i++)
        if (is_meant(device->failures[i].function, function))
            return device->failures[i].code;
    return SUCCESS;
}

static int judge(const char *function, const struct device *device)
{
    look_at_the_scenario();
    int code = failure_of(&driver, function);
    if (code == SUCCESS && strncmp(function, "nvmlInit", 8) && !is_open)
        return UNINITIALIZED;
    if (code == SUCCESS && device && !device->is_present)
        return device->parent ? NOT_FOUND : GPU_IS_LOST;
    return code == SUCCESS && device ? failure_of(device, function) : code;
}

int enter(const char *function, struct device *device)
{
    static const struct timespec PAUSE = {0, 2000000};
    int code;
    note_call(function);
    while ((code = judge(function, device)) == HANG)
        nanosleep(&PAUSE, NULL);
    if (code == DRIVER_NOT_LOADED || code == LIB_RM_VERSION_MISMATCH)
        is_open = 0; /* what was opened belongs to a driver that is gone */
    return code;
}

void set_open(int opened)
{
    is_open = opened;
}

const char *driver_version(void)
{
    return version;
}

int board_count(void)
{
    return present_boards;
}

struct device *find_board(int index)
{
    for (int i = 0; i < device_count; i++)
        if (devices[i].is_present && !devices[i].parent && devices[i].index == index)
            return &devices[i];
    return NULL;
}

struct device *find_by_uuid(const char *uuid)
{
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid))
            return &devices[i];
    return NULL;
}

struct device *find_instance(const struct device *board, int slot)
{
    for (int i = 0; i < device_count; i++)
        if (devices[i].is_present && devices[i].parent == board && devices[i].slot == slot)
            return &devices[i];
    return NULL;
}

int take(struct device *device, const char *name, number *result)
{
    for (int i = 0; i < device->value_count; i++) {
        struct value *value = &device->values[i];
        if (strcmp(value->name, name))
            continue;
        *result = value->steps[value->next];
        value->next = (value->next + 1) % value->count;
        return SUCCESS;
    }
    return NOT_SUPPORTED;
}

void listen_to(struct device *device)
{
    device->is_listened_to = 1;
    device->heard_xid = 0;
    for (int i = 0; i < device->xid_count; i++)
        if (device->xids[i].number > device->heard_xid)
            device->heard_xid = device->xids[i].number;
}

void listen_to_nobody(void)
{
    for (int i = 0; i < device_count; i++)
        devices[i].is_listened_to = 0;
}

struct device *hear(unsigned *code)
{
    for (int i = 0; i < device_count; i++)
        for (int j = 0; devices[i].is_listened_to && j < devices[i].xid_count; j++)
            if (devices[i].xids[j].number > devices[i].heard_xid) {
                devices[i].heard_xid = devices[i].xids[j].number;
                *code = devices[i].xids[j].code;
                return &devices[i];
            }
    return NULL;
}
