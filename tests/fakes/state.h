/* What the fake cards are at this moment: one file, mapped by the fake libraries and by whoever steers them.
 *
 * state.py reads this very text to lay out the same structures with ctypes, so it keeps to a small part of C: one
 * member a line, of a fixed width or a structure from above, with at most one dimension.
 *
 * A single number is written in place. What belongs together is in `struct moving`, of which a card has two banks: the
 * one that counts is bank % 2; a writer fills the other one and then counts `bank` up, a reader copies and looks
 * whether `bank` is still the same.
 */
#ifndef MUSTER_FAKE_STATE_H
#define MUSTER_FAKE_STATE_H

#include <stdint.h>

#define FAKE_MAGIC 0x6d757374
#define FAKE_CARDS 64
#define FAKE_POINTS 64
#define FAKE_PROCESSES 64
#define FAKE_FAULTS 32
#define FAKE_LINKS 24
#define FAKE_EVENTS 256
#define FAKE_CODES 16
#define FAKE_CPU_WORDS 16
#define FAKE_GPM 64

/* Flags of a process: it is on the card only as long as it lives; it draws; the driver does not tell its memory. Behind
 * them the MIG instance that it is on, from 1. */
#define PROCESS_LIVES 1
#define PROCESS_GRAPHICS 2
#define PROCESS_UNTOLD 4
#define PROCESS_INSTANCE 256

/* MIG instances that a card has at most; `mig_count` are there, each with a 7th of the memory. */
#define FAKE_INSTANCES 8

/* Ends of a fabric link: a card by its place, none, or the switch FAKE_SWITCH + n. */
#define LINK_NONE -1
#define FAKE_SWITCH 100

struct point {
    double at;
    double value;
};

/* `count` 0: `value` at all times. Else points in the order of their time in seconds since `epoch` (CLOCK_MONOTONIC),
 * straight lines between them, over and over again. */
struct curve {
    double value;
    double epoch;
    int32_t count;
    int32_t reserved;
    struct point points[FAKE_POINTS];
};

/* A counter: `base` at the time `since` (CLOCK_MONOTONIC), and `rate` more each second. */
struct growth {
    double base;
    double rate;
    double since;
};

struct process {
    int32_t pid;
    int32_t flags;
    uint64_t bytes;
};

struct moving {
    struct curve util;
    struct curve mem_util;
    struct curve power_w;
    struct curve temp_c;
    struct growth fabric_bytes;
    double energy_mj;
    double energy_since;
    int32_t process_count;
    int32_t reserved;
    struct process processes[FAKE_PROCESSES];
};

/* Of one function, or of all ("*"): what it returns, and whether it waits first. `waiting` counts calls that wait. */
/* The code of a fault that ends the process, as a defect of the library would. */
#define FAKE_CRASH 11111
/* ... a field that says what is no number, or all bits, and calls it success. */
#define FAKE_NAN 11112
#define FAKE_ALL_BITS 11113

struct fault {
    char function[64];
    int32_t used;
    int32_t code;
    int32_t hang;
    int32_t waiting;
};

struct event {
    double at;
    uint64_t type;
    uint64_t data;
    int32_t card;
    int32_t severity;
    int32_t assertion;
    int32_t reserved;
};

struct card {
    uint64_t bank;
    uint64_t calls;
    uint64_t mem_total;
    uint64_t mem_used;
    uint64_t mem_reserved;
    uint64_t sram_corrected;
    uint64_t sram_uncorrected;
    uint64_t dram_corrected;
    uint64_t dram_uncorrected;
    uint64_t old_corrected;
    uint64_t old_uncorrected;
    uint64_t event_reasons;
    uint64_t cpu_mask[FAKE_CPU_WORDS];

    char uuid[96];
    char model[96];
    char serial[32];
    char bus_id[32];

    int32_t present;
    int32_t lost;
    int32_t minor;
    int32_t numa_node;
    int32_t mig;
    int32_t persistence;
    int32_t ecc_on;
    int32_t power_limit_mw;
    int32_t power_max_mw;
    int32_t mem_temp_c;
    int32_t shutdown_c;
    int32_t slowdown_c;
    int32_t mem_max_c;
    int32_t gpu_max_c;
    int32_t sm_clock_mhz;
    int32_t sm_clock_max_mhz;
    int32_t mem_clock_mhz;
    int32_t mem_clock_max_mhz;
    int32_t pcie_gen;
    int32_t pcie_gen_max;
    int32_t pcie_width;
    int32_t pcie_width_max;
    int32_t pcie_replay;
    int32_t pcie_rx_kbps;
    int32_t pcie_tx_kbps;
    int32_t remapped_correctable;
    int32_t remapped_uncorrectable;
    int32_t remapped_pending;
    int32_t remapped_failure;
    int32_t recovery_action;
    int32_t fabric_state;
    int32_t fabric_status;
    int32_t fabric_health;
    int32_t fabric_mask;
    uint32_t link_up;
    int32_t link_count;
    int32_t link_version;
    int32_t mig_count;
    /* Ten times the major number of CUDA's compute capability, and the minor; nvmlGpuVirtualizationMode_t. */
    int32_t capability;
    /* What all NVLinks together counted; pages out of use (-1: not told); the clock for programs (0: as it was made). */
    int32_t link_crc;
    int32_t link_recoveries;
    int32_t retired_pages;
    int32_t retired_pending;
    int32_t app_clock_mhz;
    int32_t virtualization;
    int32_t link_end[FAKE_LINKS];
    /* Whether the card has GPM; what each metric says, by its number: negative: not told. */
    int32_t gpm;
    int32_t encoder;
    int32_t decoder;
    double gpm_values[FAKE_GPM];

    /* Ascend: the board and the place of the chip on it; percentages of its parts. */
    int32_t board;
    int32_t chip;
    int32_t npu_health;
    int32_t npu_network;
    int32_t npu_boot;
    int32_t npu_link_up;
    int32_t npu_profiled;
    int32_t aicpu;
    int32_t ctrlcpu;
    int32_t vector;
    int32_t overall;
    int32_t voltage_mv;
    uint32_t util_types;
    int32_t error_count;
    uint32_t errors[FAKE_CODES];
    uint32_t die[5];
    /* The board whose ports stand in for this one's; -1: none; -2: the driver does not say. */
    int32_t brother;

    int32_t fault_count;
    int32_t reserved_too;
    struct fault faults[FAKE_FAULTS];
    struct moving banks[2];
};

/* `epoch` counts how often the driver was loaded or unloaded; `wake` is the futex of all that wait. */
struct state {
    uint32_t magic;
    uint32_t size;
    uint32_t wake;
    uint32_t epoch;
    int32_t init_code;
    int32_t generation;
    int32_t card_count;
    int32_t fault_count;
    uint64_t calls;
    uint64_t event_count;
    uint64_t gpm_samples;
    /* Processes that have NVML open, and how often a program reset cards. */
    uint64_t sessions;
    uint64_t resets;
    char driver_version[80];
    char library_version[80];
    struct fault faults[FAKE_FAULTS];
    struct event events[FAKE_EVENTS];
    struct card cards[FAKE_CARDS];
};

#endif
