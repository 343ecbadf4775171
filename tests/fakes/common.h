/* What both fake libraries do alike: find and map the state, obey its faults, work out what moves. */
#ifndef MUSTER_FAKE_COMMON_H
#define MUSTER_FAKE_COMMON_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

#define API __attribute__((visibility("default")))
/* A value that a writer changes while we look. */
#define NOW(member) (*(volatile __typeof__(member) *)&(member))

/* NULL until the first initialization; then mapped for the rest of the process' life. */
static _Atomic(struct state *) mapped;
static bool writable;

static struct state *the_state(void) { return atomic_load_explicit(&mapped, memory_order_acquire); }

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The file that MUSTER_FAKE_CARDS names, else `cards.state` beside the library. NULL where there is none, which is as
 * if the kernel module were not loaded; a file of another layout is a mistake, and is told so. */
static struct state *map_state(void)
{
    struct state *state = the_state(), *none = NULL;
    char beside[4096];
    const char *path = getenv("MUSTER_FAKE_CARDS");
    Dl_info self;
    struct stat about;
    int file;

    if (state)
        return state;
    if (!path || !*path) {
        if (!dladdr((void *)map_state, &self) || !self.dli_fname)
            return NULL;
        const char *slash = strrchr(self.dli_fname, '/');
        int length = slash ? (int)(slash - self.dli_fname + 1) : 0;
        snprintf(beside, sizeof beside, "%.*scards.state", length, self.dli_fname);
        path = beside;
    }
    writable = true;
    if ((file = open(path, O_RDWR | O_CLOEXEC)) < 0) {
        writable = false;
        if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0)
            return NULL;
    }
    if (fstat(file, &about) || about.st_size < (off_t)sizeof *state) {
        fprintf(stderr, "fake cards: %s is smaller than the state of this library: make it anew\n", path);
        close(file);
        return NULL;
    }
    state = mmap(NULL, sizeof *state, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, file, 0);
    close(file);
    if (state == MAP_FAILED)
        return NULL;
    if (state->magic != FAKE_MAGIC || state->size != sizeof *state) {
        fprintf(stderr, "fake cards: %s has another layout than this library: make it anew\n", path);
        munmap(state, sizeof *state);
        return NULL;
    }
    if (!atomic_compare_exchange_strong(&mapped, &none, state)) {
        munmap(state, sizeof *state);
        return none;
    }
    return state;
}

/* Until `wake` is no longer `seen`, or for so long; the writer wakes us with every change that one may wait for. */
static void wait_for_change(struct state *state, uint32_t seen, double seconds)
{
    if (seconds > 1.0)
        seconds = 1.0;
    struct timespec limit = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    syscall(SYS_futex, &state->wake, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* Looks for `function` in a list of faults, waits where it says so, and gives the code that is to be returned. */
static int obey(struct state *state, struct fault *faults, int32_t *count, const char *function)
{
    for (int i = 0; i < NOW(*count) && i < FAKE_FAULTS; i++) {
        struct fault *fault = &faults[i];
        if (!NOW(fault->used) || (strcmp(fault->function, "*") && strcmp(fault->function, function)))
            continue;
        if (NOW(fault->hang)) {
            if (writable)
                __atomic_add_fetch(&fault->waiting, 1, __ATOMIC_SEQ_CST);
            for (;;) {
                uint32_t seen = NOW(state->wake);
                if (!NOW(fault->used) || !NOW(fault->hang))
                    break;
                wait_for_change(state, seen, 1.0);
            }
            if (writable)
                __atomic_sub_fetch(&fault->waiting, 1, __ATOMIC_SEQ_CST);
        }
        if (NOW(fault->used) && NOW(fault->code) == FAKE_CRASH)
            raise(SIGSEGV);
        if (NOW(fault->used) && NOW(fault->code))
            return NOW(fault->code);
    }
    return 0;
}

/* Counts the call and obeys the faults of all cards and of this one (NULL: the call is about none). */
static int faulty(struct state *state, struct card *card, const char *function)
{
    int code;
    if (writable) {
        __atomic_add_fetch(&state->calls, 1, __ATOMIC_RELAXED);
        if (card)
            __atomic_add_fetch(&card->calls, 1, __ATOMIC_RELAXED);
    }
    if (NOW(state->fault_count) && (code = obey(state, state->faults, &state->fault_count, function)))
        return code;
    if (card && NOW(card->fault_count))
        return obey(state, card->faults, &card->fault_count, function);
    return 0;
}

/* Copies one member of what moves, whole. */
#define COPY_MOVING(card, member, into)                                                                                \
    do {                                                                                                               \
        uint64_t bank_;                                                                                                \
        int tries_ = 0;                                                                                                \
        do {                                                                                                           \
            bank_ = __atomic_load_n(&(card)->bank, __ATOMIC_ACQUIRE);                                                  \
            (into) = (card)->banks[bank_ & 1].member;                                                                  \
            __atomic_thread_fence(__ATOMIC_ACQUIRE);                                                                   \
        } while (__atomic_load_n(&(card)->bank, __ATOMIC_ACQUIRE) != bank_ && ++tries_ < 100);                         \
    } while (0)

static double value_at(const struct curve *curve, double now)
{
    int count = curve->count < FAKE_POINTS ? curve->count : FAKE_POINTS;
    if (count <= 0)
        return curve->value;
    const struct point *points = curve->points;
    double period = points[count - 1].at;
    double at = period > 0 ? now - curve->epoch : 0;
    if (period > 0)
        at -= period * (double)(long)(at / period);
    if (at < 0)
        at = 0;
    if (at <= points[0].at)
        return points[0].value;
    for (int i = 1; i < count; i++)
        if (at <= points[i].at) {
            double width = points[i].at - points[i - 1].at;
            double share = width > 0 ? (at - points[i - 1].at) / width : 1;
            return points[i - 1].value + share * (points[i].value - points[i - 1].value);
        }
    return points[count - 1].value;
}

/* The area under the curve from its epoch until `seconds` after it. */
static double area(const struct curve *curve, double seconds)
{
    int count = curve->count < FAKE_POINTS ? curve->count : FAKE_POINTS;
    if (count <= 0)
        return curve->value * seconds;
    const struct point *points = curve->points;
    double period = points[count - 1].at, whole = 0, rest = 0;
    if (period <= 0)
        return points[0].value * seconds;
    double left = seconds - period * (double)(long)(seconds / period);
    double before = 0, value = points[0].value;
    for (int i = 0; i < count; i++) {
        double width = points[i].at - before;
        whole += width * (value + points[i].value) / 2;
        if (left > before && width > 0) {
            double part = left < points[i].at ? left - before : width;
            double end = value + (points[i].value - value) * part / width;
            rest += part * (value + end) / 2;
        }
        before = points[i].at;
        value = points[i].value;
    }
    return whole * (double)(long)(seconds / period) + rest;
}

/* One of the curves of a card at this moment. A macro, as it copies a member by its name. */
#define MOVING(card, member)                                                                                           \
    __extension__({                                                                                                    \
        struct curve curve_;                                                                                           \
        uint64_t bank_ = __atomic_load_n(&(card)->bank, __ATOMIC_ACQUIRE);                                             \
        if ((card)->banks[bank_ & 1].member.count == 0)                                                                \
            curve_.count = 0, curve_.value = NOW((card)->banks[bank_ & 1].member.value);                               \
        else                                                                                                           \
            COPY_MOVING(card, member, curve_);                                                                         \
        value_at(&curve_, curve_.count ? now_s() : 0);                                                                 \
    })

static __attribute__((unused)) uint64_t fabric_bytes(struct card *card)
{
    struct growth growth;
    COPY_MOVING(card, fabric_bytes, growth);
    return (uint64_t)(growth.base + growth.rate * (now_s() - growth.since));
}

/* What the card has used since it began to count, in millijoules: the power that it tells, summed up. */
static __attribute__((unused)) uint64_t energy_mj(struct card *card)
{
    struct curve power;
    double base, since, now = now_s();
    COPY_MOVING(card, energy_mj, base);
    COPY_MOVING(card, energy_since, since);
    COPY_MOVING(card, power_w, power);
    if (!power.count)
        power.epoch = since;
    return (uint64_t)(base + 1000 * (area(&power, now - power.epoch) - area(&power, since - power.epoch)));
}

/* Whether the process runs; one that has ended and is not waited for yet holds no card. */
static bool lives(int pid)
{
    char path[64], text[512], *end;
    if (kill(pid, 0) && errno == ESRCH)
        return false;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0)
        return false;
    text[size] = 0;
    end = strrchr(text, ')');
    return end && end[1] && end[2] != 'Z' && end[2] != 'X';
}

/* The processes on the card, in the order in which they were put there; `into` has room for all. */
static int processes(struct card *card, struct process *into)
{
    struct moving *moving;
    uint64_t bank;
    int count, kept = 0, tries = 0;
    do {
        bank = __atomic_load_n(&card->bank, __ATOMIC_ACQUIRE);
        moving = &card->banks[bank & 1];
        count = moving->process_count < FAKE_PROCESSES ? moving->process_count : FAKE_PROCESSES;
        memcpy(into, moving->processes, (size_t)count * sizeof *into);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (__atomic_load_n(&card->bank, __ATOMIC_ACQUIRE) != bank && ++tries < 100);
    for (int i = 0; i < count; i++)
        if (!(into[i].flags & PROCESS_LIVES) || lives(into[i].pid))
            into[kept++] = into[i];
    return kept;
}

/* What is in use by itself, and what the processes hold; without what the driver keeps for itself. */
static uint64_t memory_used(struct card *card)
{
    struct process list[FAKE_PROCESSES];
    int count = processes(card, list);
    uint64_t used = NOW(card->mem_used), room = NOW(card->mem_total) - NOW(card->mem_reserved);
    for (int i = 0; i < count; i++)
        used += list[i].bytes;
    return used < room ? used : room;
}

/* Cuts a text as the real libraries do not: they refuse. `false`: there is no room. */
static __attribute__((unused)) bool give_text(char *into, unsigned room, const char *text)
{
    if (!into || strlen(text) >= room)
        return false;
    strcpy(into, text);
    return true;
}

#endif
