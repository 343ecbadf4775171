/* The library itself: what each function begins with, and how a chip is found. */
#include "../common.h"

#include <pthread.h>

enum {
    OK = 0, PARAMETER = -8001, NO_MEMORY = -8003, INTERNAL = -8005, TIMED_OUT = -8006, BAD_ID = -8007, REFUSED = -8009,
    NOT_READY = -8012, OCCUPIED = -8020, UNSUPPORTED = -8255,
};
#define ABSENT 0xFFFFFFFFu
#define MOST_PROCESSES 32

static _Atomic bool ready;
static _Atomic uint32_t opened;
/* Next event of each chip, and, last, of whoever asks for all. */
static _Atomic uint64_t next_event[FAKE_CARDS + 1];

static int initialize(const char *function, int generation)
{
    struct state *state = map_state();
    int code;
    if (!state)
        return NOT_READY;
    if ((code = faulty(state, NULL, function)) || (code = NOW(state->init_code)))
        return code;
    if (NOW(state->generation) != generation)
        return UNSUPPORTED;
    uint64_t count = __atomic_load_n(&state->event_count, __ATOMIC_ACQUIRE);
    if (!atomic_exchange(&ready, true))
        for (int i = 0; i <= FAKE_CARDS; i++)
            atomic_store(&next_event[i], count);
    atomic_store(&opened, NOW(state->epoch));
    return OK;
}

API int dcmi_init(void) { return initialize(__func__, 1); }
API int dcmiv2_init(void) { return initialize(__func__, 2); }

/* What every other call begins with. `card` NULL: the call is about none. */
static int enter(const char *function, int generation, struct card *card)
{
    struct state *state = the_state();
    int code;
    if (!state || !atomic_load(&ready))
        return INTERNAL;
    if (NOW(state->generation) != generation)
        return UNSUPPORTED;
    if ((code = faulty(state, card, function)))
        return code;
    if (NOW(state->epoch) != atomic_load(&opened))
        return REFUSED;
    return card && NOW(card->lost) ? NOT_READY : OK;
}

static struct card *by_pair(int board, int chip)
{
    struct state *state = the_state();
    for (int i = 0; state && i < NOW(state->card_count); i++) {
        struct card *card = &state->cards[i];
        if (NOW(card->present) && NOW(card->board) == board && NOW(card->chip) == chip)
            return card;
    }
    return NULL;
}

/* The logical number of a chip counts those that are there. */
static struct card *by_logic(int logic)
{
    struct state *state = the_state();
    for (int i = 0; state && i < NOW(state->card_count); i++)
        if (NOW(state->cards[i].present) && logic-- == 0)
            return &state->cards[i];
    return NULL;
}

static int logic_of(struct card *card)
{
    int logic = 0;
    for (struct card *other = the_state()->cards; other < card; other++)
        logic += NOW(other->present) != 0;
    return logic;
}

/* BOTH(old, new, (parameters), body): the same for a pair of numbers and for a device's. */
#define PLAIN(...) __VA_ARGS__
#define BOTH(old, new, parameters, ...)                                                                                \
    API int old(int board, int chip, PLAIN parameters)                                                                 \
    {                                                                                                                  \
        struct card *card = by_pair(board, chip);                                                                      \
        int code_ = enter(#old, 1, card);                                                                              \
        if (code_ || !card)                                                                                            \
            return code_ ? code_ : BAD_ID;                                                                             \
        __VA_ARGS__                                                                                                    \
    }                                                                                                                  \
    API int new(int logic, PLAIN parameters)                                                                           \
    {                                                                                                                  \
        struct card *card = by_logic(logic);                                                                           \
        int code_ = enter(#new, 2, card);                                                                              \
        if (code_ || !card)                                                                                            \
            return code_ ? code_ : BAD_ID;                                                                             \
        __VA_ARGS__                                                                                                    \
    }

static int text(char *into, unsigned room, const char *value) { return give_text(into, room, value) ? OK : PARAMETER; }

#define VERSION(name, generation, member)                                                                              \
    API int name(char *into, unsigned room)                                                                            \
    {                                                                                                                  \
        int code = enter(#name, generation, NULL);                                                                     \
        return code ? code : text(into, room, the_state()->member);                                                    \
    }
VERSION(dcmi_get_driver_version, 1, driver_version)
VERSION(dcmi_get_dcmi_version, 1, library_version)
VERSION(dcmiv2_get_driver_version, 2, driver_version)
VERSION(dcmiv2_get_dcmi_version, 2, library_version)
