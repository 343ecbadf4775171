/* Events, of which a process hears that waits for them. */

struct event_set {
    uint64_t next;
    uint64_t mask[FAKE_CARDS];
    uint64_t from[FAKE_CARDS];
};
struct event_data {
    struct device *device;
    unsigned long long type, data;
    unsigned instance, compute_instance;
};
#define EVENT_TYPES 0x19fULL

API int nvmlEventSetCreate(struct event_set **set)
{
    SYSTEM
    if (!(*set = calloc(1, sizeof **set)))
        return NO_MEMORY;
    (*set)->next = __atomic_load_n(&the_state()->event_count, __ATOMIC_ACQUIRE);
    return OK;
}

API int nvmlEventSetFree(struct event_set *set) { SYSTEM free(set); return OK; }

GIVES(nvmlDeviceGetSupportedEventTypes, unsigned long long, EVENT_TYPES)

/* What happened before is lost, as with the real one. */
API int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, struct event_set *set)
{
    REACH
    if (!set || types & ~EVENT_TYPES)
        return set ? UNSUPPORTED : INVALID;
    if (!set->mask[device - devices])
        set->from[device - devices] = __atomic_load_n(&the_state()->event_count, __ATOMIC_ACQUIRE);
    set->mask[device - devices] |= types;
    return OK;
}

static bool next_event(struct state *state, struct event_set *set, struct event_data *data)
{
    uint64_t count = __atomic_load_n(&state->event_count, __ATOMIC_ACQUIRE);
    if (count - set->next > FAKE_EVENTS)
        set->next = count - FAKE_EVENTS;
    while (set->next < count) {
        uint64_t number = set->next++;
        struct event event = state->events[number % FAKE_EVENTS];
        if (event.card < 0 || event.card >= FAKE_CARDS || number < set->from[event.card]
            || !(set->mask[event.card] & event.type))
            continue;
        *data = (struct event_data){.device = &devices[event.card], .type = event.type, .data = event.data,
                                    .instance = UINT32_MAX, .compute_instance = UINT32_MAX};
        return true;
    }
    return false;
}

/* NVML says that it gives GPU_IS_LOST where one of the cards it watches is: at once, each time. */
static int wait_event(const char *function, struct event_set *set, struct event_data *data, unsigned timeout_ms)
{
    double end = now_s() + timeout_ms / 1000.0, left;
    struct state *state = the_state();
    int code;
    do {
        if ((code = enter(function, NULL, NULL)))
            return code;
        if (!set || !data)
            return INVALID;
        uint32_t seen = NOW(state->wake);
        if (next_event(state, set, data))
            return OK;
        for (int i = 0; i < NOW(state->card_count); i++)
            if (set->mask[i] && NOW(state->cards[i].lost) == 15)
                return 15;
        left = end - now_s();
        if (left > 0)
            wait_for_change(state, seen, left);
    } while (left > 0);
    return TIMED_OUT;
}

API int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, unsigned timeout_ms)
{
    return wait_event(__func__, set, data, timeout_ms);
}

API int nvmlEventSetWait(struct event_set *set, struct event_data *data, unsigned timeout_ms)
{
    return wait_event(__func__, set, data, timeout_ms);
}
