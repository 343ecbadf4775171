/* Plays recorded answers of NVML; replay.py writes the tables and says what the rules are. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOT_SUPPORTED 3

struct bytes {
    uint32_t size;
    const char *at;
};

/* A number, or memory of `size` bytes: what was in it before the call, and after it. */
struct argument {
    int memory;
    uint64_t number;
    uint32_t size;
    struct bytes before, after;
};

struct answer {
    int scene, result, times, played, many;
    struct argument *arguments;
};

/* Of a field or a metric; -1 as the scene ends a table. */
struct value {
    int scene;
    uint64_t handle;
    uint32_t number, scope;
    struct bytes after;
};

extern const char *const scenes[];
extern struct value values[], metrics[];

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

static void path(char *into, size_t size, const char *name) {
    const char *folder = getenv("MUSTER_REPLAY");
    snprintf(into, size, "%s/%s", folder ? folder : ".", name);
}

static int scene(void) {
    char file[4096], name[64] = "idle";
    path(file, sizeof file, "scene");
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = read(fd, name, sizeof name - 1);
        name[n > 0 ? n : 0] = 0;
        close(fd);
    }
    for (int i = 0; scenes[i]; i++)
        if (!strcmp(scenes[i], name))
            return i;
    return 0;
}

static void missed(const char *name, long number) {
    char file[4096], line[256];
    path(file, sizeof file, "missed");
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) {
        int n = number < 0 ? snprintf(line, sizeof line, "%s\n", name)
                           : snprintf(line, sizeof line, "%s:%ld\n", name, number);
        if (write(fd, line, n) < 0)
            abort();
        close(fd);
    }
}

static int same(const struct argument *argument, uintptr_t given) {
    if (!argument->memory) /* the upper half of a register is not told for an int */
        return argument->number >> 32 ? argument->number == given : (uint32_t)argument->number == (uint32_t)given;
    return given && !memcmp(argument->before.at, (void *)given, argument->before.size);
}

static int fits(const struct answer *answer, const uintptr_t *given) {
    for (int i = 0; i < answer->many; i++)
        if (!same(&answer->arguments[i], given[i]))
            return 0;
    return 1;
}

static int play(const char *name, struct answer *answers, int many, const uintptr_t *given) {
    pthread_mutex_lock(&one_at_a_time);
    struct answer *found = 0;
    int now = scene(), result = NOT_SUPPORTED;
    for (int any = 0; any < 2 && !found; any++)
        for (int i = 0; i < many; i++) {
            struct answer *each = &answers[i];
            if ((!any && each->scene != now) || !fits(each, given))
                continue;
            found = each;
            if (each->played < each->times)
                break;
        }
    if (found) {
        found->played++;
        result = found->result;
        for (int i = 0; i < found->many; i++) {
            struct argument *argument = &found->arguments[i];
            if (argument->memory) {
                memset((void *)given[i], 0, argument->size);
                memcpy((void *)given[i], argument->after.at, argument->after.size);
            }
        }
    } else {
        missed(name, -1);
    }
    pthread_mutex_unlock(&one_at_a_time);
    return result;
}

#define EXPORT __attribute__((visibility("default")))
#define CALL(name)                                                                                                     \
    EXPORT int name(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f) {                    \
        return play(#name, of_##name, sizeof of_##name / sizeof *of_##name, (uintptr_t[]){a, b, c, d, e, f});         \
    }

static const struct value *find(const struct value *table, uint64_t handle, uint32_t number, uint32_t scope) {
    int now = scene();
    const struct value *found = 0;
    for (const struct value *each = table; each->scene >= 0; each++)
        if (each->handle == handle && each->number == number && each->scope == scope)
            if (!found || (found->scene != now && each->scene == now))
                found = each;
    return found;
}

/* nvmlFieldValue_t: the field at 0, its scope at 4, the return code at 28. */
EXPORT int nvmlDeviceGetFieldValues(uintptr_t device, int many, char *fields) {
    for (char *field = fields; field < fields + 40 * many; field += 40) {
        uint32_t number = *(uint32_t *)field, scope = *(uint32_t *)(field + 4);
        const struct value *found = find(values, device, number, scope);
        memset(field + 8, 0, 32);
        if (found)
            memcpy(field, found->after.at, found->after.size);
        else {
            missed("nvmlDeviceGetFieldValues", number);
            *(int *)(field + 28) = NOT_SUPPORTED;
        }
    }
    return 0;
}

/* nvmlGpmMetricsGet_t: how many at 4, the metrics from 24 on; nvmlGpmMetric_t: its number at 0, the return code at 4. */
EXPORT int nvmlGpmMetricsGet(char *asked) {
    for (uint32_t i = 0; i < *(uint32_t *)(asked + 4); i++) {
        char *metric = asked + 24 + 40 * i;
        const struct value *found = find(metrics, 0, *(uint32_t *)metric, 0);
        if (found)
            memcpy(metric, found->after.at, 16);
        else {
            missed("nvmlGpmMetricsGet", *(uint32_t *)metric);
            *(int *)(metric + 4) = NOT_SUPPORTED;
        }
    }
    return 0;
}

EXPORT int nvmlGpmSampleAlloc(void **sample) {
    *sample = malloc(1);
    return *sample ? 0 : 20;
}

EXPORT int nvmlGpmSampleFree(void *sample) {
    free(sample);
    return 0;
}

EXPORT int nvmlGpmSampleGet(uintptr_t device, void *sample) { return device && sample ? 0 : 2; }

EXPORT int nvmlEventSetCreate(void **set) { return nvmlGpmSampleAlloc(set); }

EXPORT int nvmlEventSetFree(void *set) { return nvmlGpmSampleFree(set); }

EXPORT int nvmlDeviceRegisterEvents(uintptr_t device, uint64_t kinds, void *set) { return device && set ? 0 : 2; }

/* No event was recorded: 10 is a time-out. */
EXPORT int nvmlEventSetWait_v2(void *set, void *data, uint32_t milliseconds) {
    usleep(1000 * milliseconds);
    return 10;
}
