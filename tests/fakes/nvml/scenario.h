/* What the fake driver says, as a scenario file sets it. The file is read again whenever it changes. */
#ifndef GPUDECK_FAKE_SCENARIO_H
#define GPUDECK_FAKE_SCENARIO_H

#include <stddef.h>

enum { DEVICES = 256, VALUES = 64, STEPS = 64, PROCESSES = 1100, FAILURES = 32, XIDS = 64, TEXT = 96 };

/* Return codes of NVML. */
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
    HANG = -1, /* ours: the call does not return before the scenario stops saying so */
};

typedef unsigned long long number;

/* A value that takes the next of its steps each time it is read, and starts over after the last. */
struct value {
    char name[TEXT];
    number steps[STEPS];
    int count, next;
};

struct process {
    char kind; /* c: compute, g: graphics */
    unsigned pid;
    number memory;
};

/* What a process did lately; `time` in microseconds. */
struct sample {
    unsigned pid, utilization;
    number time;
};

struct failure {
    char function[TEXT];
    int code;
};

/* A fault that an event tells of, once: those of a number up to `heard_xid` were told. */
struct xid {
    unsigned number, code;
};

/* A board, or a MIG instance of one. Its address is its handle: it stays the same when the file is read again. */
struct device {
    char uuid[TEXT], name[TEXT], pci[TEXT];
    int is_present, index, slot;
    struct device *parent;
    struct value values[VALUES];
    struct process processes[PROCESSES];
    struct sample samples[PROCESSES];
    struct failure failures[FAILURES];
    struct xid xids[XIDS];
    int value_count, process_count, sample_count, failure_count, xid_count;
    unsigned heard_xid;
    int is_listened_to;
};

/* Every exported function begins with this: SUCCESS, or the code to return. `device` is NULL for the whole driver. */
int enter(const char *function, struct device *device);

void set_open(int is_open);
const char *driver_version(void);
int board_count(void);
struct device *find_board(int index);
struct device *find_by_uuid(const char *uuid);
struct device *find_instance(const struct device *board, int slot);

/* From now on its faults are told; those from before are not. */
void listen_to(struct device *device);
void listen_to_nobody(void);
/* The device with a fault that was not told yet, which now is; NULL where there is none. */
struct device *hear(unsigned *code);

/* The value's next step; NOT_SUPPORTED where the scenario gives none. */
int take(struct device *device, const char *name, number *value);

#endif
