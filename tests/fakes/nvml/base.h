/* The library itself: its users, what it says of itself, and what each function begins with. */
#include "../common.h"
/* Of the package nvidia-nvml-dev: the compiler holds each function to its prototype and each struct to its layout. The
 * functions of older versions are there under their own names, too. */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#define OK NVML_SUCCESS
#define UNINITIALIZED NVML_ERROR_UNINITIALIZED
#define INVALID NVML_ERROR_INVALID_ARGUMENT
#define UNSUPPORTED NVML_ERROR_NOT_SUPPORTED
#define NOT_FOUND NVML_ERROR_NOT_FOUND
#define TOO_SMALL NVML_ERROR_INSUFFICIENT_SIZE
#define NOT_LOADED NVML_ERROR_DRIVER_NOT_LOADED
#define TIMED_OUT NVML_ERROR_TIMEOUT
#define NO_MEMORY NVML_ERROR_MEMORY
#define VERSION NVML_ERROR_ARGUMENT_VERSION_MISMATCH
#define UNKNOWN NVML_ERROR_UNKNOWN
#define TOLD_NOTHING UINT64_MAX

/* What nvmlDevice_t points to: only its place counts. */
struct nvmlDevice_st {
    char unused;
};
static struct nvmlDevice_st devices[FAKE_CARDS];
static struct nvmlDevice_st migs[FAKE_CARDS * FAKE_INSTANCES];
static _Atomic int users;
static _Atomic uint32_t opened;

static const struct {
    int code;
    const char *text;
} errors[] = {
    {0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"},
    {4, "Insufficient Permissions"}, {5, "Already Initialized"}, {6, "Not Found"}, {7, "Insufficient Size"},
    {8, "Insufficient External Power"},
    {9, "Driver Not Loaded"}, {10, "Timeout"}, {11, "Interrupt Request Issue"}, {12, "NVML Shared Library Not Found"},
    {13, "Function Not Found"}, {14, "Corrupted infoROM"}, {15, "GPU is lost"}, {16, "GPU requires reset"},
    {17, "The operating system has blocked the request"}, {18, "Driver/library version mismatch"},
    {19, "In use by another client"}, {20, "Insufficient Memory"}, {21, "No data"},
    {23, "Insufficient Resources"}, {25, "Version mismatch"}, {27, "Not Ready"}, {28, "GPU not found"},
    {999, "Unknown Error"},
};

API const char *nvmlErrorString(nvmlReturn_t code)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)code)
            return errors[i].text;
    return "Unknown Error";
}

/* A program that resets a card looks whether anybody has the library open. */
static void count_session(struct state *state, int more)
{
    if (writable && state)
        __atomic_add_fetch(&state->sessions, (uint64_t)(int64_t)more, __ATOMIC_SEQ_CST);
}

static int initialize(const char *function)
{
    struct state *state = map_state();
    int code;
    if (!state)
        return NOT_LOADED;
    if ((code = faulty(state, NULL, function)))
        return code;
    if (atomic_load(&users) == 0) {
        if ((code = NOW(state->init_code)))
            return code;
        atomic_store(&opened, NOW(state->epoch));
    }
    if (atomic_fetch_add(&users, 1) == 0)
        count_session(state, 1);
    return OK;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags) { (void)flags; return initialize("nvmlInitWithFlags"); }
API nvmlReturn_t nvmlInit_v2(void) { return initialize("nvmlInit_v2"); }
API nvmlReturn_t nvmlInit(void) { return initialize("nvmlInit"); }

API nvmlReturn_t nvmlShutdown(void)
{
    int before = atomic_load(&users), code;
    if ((code = before ? faulty(the_state(), NULL, "nvmlShutdown") : UNINITIALIZED))
        return code;
    while (before > 0)
        if (atomic_compare_exchange_weak(&users, &before, before - 1)) {
            if (before == 1)
                count_session(the_state(), -1);
            return OK;
        }
    return UNINITIALIZED;
}

/* What every call but the first ones begins with. A driver that was unloaded, or loaded anew, under an open library
 * knows nothing of it. */
static int enter(const char *function, nvmlDevice_t device, struct card **card)
{
    struct state *state = the_state();
    int code;
    if (!state || atomic_load(&users) == 0)
        return UNINITIALIZED;
    if (card) {
        if (device < devices || device >= devices + NOW(state->card_count))
            return INVALID;
        *card = &state->cards[device - devices];
    }
    if ((code = faulty(state, card ? *card : NULL, function)))
        return code;
    return NOW(state->epoch) == atomic_load(&opened) ? OK : UNKNOWN;
}

/* A call that must go to the card. */
static int reach(const char *function, nvmlDevice_t device, struct card **card)
{
    int code = enter(function, device, card);
    return code ? code : NOW((*card)->lost);
}

/* Begin a function that is answered from what the library remembers, or by the card; `card` is then that card's. */
#define REMEMBERED                                                                                                     \
    struct card *card = NULL;                                                                                          \
    int code_ = enter(__func__, device, &card);                                                                        \
    if (code_)                                                                                                         \
        return code_;
#define REACH                                                                                                          \
    struct card *card = NULL;                                                                                          \
    int code_ = reach(__func__, device, &card);                                                                        \
    if (code_)                                                                                                         \
        return code_;
/* ... by the card, or by one of its MIG instances: `part` is then which one, else -1. */
static int part_of(nvmlDevice_t *device)
{
    if (*device < migs || *device >= migs + FAKE_CARDS * FAKE_INSTANCES)
        return -1;
    int at = (int)(*device - migs);
    *device = &devices[at / FAKE_INSTANCES];
    return at % FAKE_INSTANCES;
}
#define REACH_PART                                                                                                     \
    int part = part_of(&device);                                                                                       \
    REACH                                                                                                              \
    if (part >= (NOW(card->mig) == 1 ? NOW(card->mig_count) : 0))                                                      \
        return INVALID;
#define SYSTEM                                                                                                         \
    int code_ = enter(__func__, NULL, NULL);                                                                           \
    if (code_)                                                                                                         \
        return code_;
/* Functions that give one number. */
#define GIVES(name, type, value)                                                                                       \
    API nvmlReturn_t name(nvmlDevice_t device, type *out)                                                                     \
    {                                                                                                                  \
        REACH                                                                                                          \
        if (!out)                                                                                                      \
            return INVALID;                                                                                            \
        *out = (type)(value);                                                                                          \
        return OK;                                                                                                     \
    }
/* ... where a card may have none (a negative number). */
#define GIVES_IF(name, type, value)                                                                                    \
    API nvmlReturn_t name(nvmlDevice_t device, type *out)                                                                     \
    {                                                                                                                  \
        REACH                                                                                                          \
        if (!out)                                                                                                      \
            return INVALID;                                                                                            \
        if ((value) < 0)                                                                                               \
            return UNSUPPORTED;                                                                                        \
        *out = (type)(value);                                                                                          \
        return OK;                                                                                                     \
    }

static int text(char *into, unsigned room, const char *value) { return give_text(into, room, value) ? OK : TOO_SMALL; }

API nvmlReturn_t nvmlSystemGetDriverVersion(char *into, unsigned room)
{
    SYSTEM
    return text(into, room, the_state()->driver_version);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *into, unsigned room)
{
    SYSTEM
    return text(into, room, the_state()->library_version);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) { SYSTEM *version = 12080; return OK; }
API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { SYSTEM *version = 12080; return OK; }

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned room)
{
    SYSTEM
    char path[64], value[256];
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, value, sizeof value - 1);
    if (file >= 0)
        close(file);
    if (size <= 0)
        return NOT_FOUND;
    value[size - 1] = 0;
    return text(name, room, value);
}
