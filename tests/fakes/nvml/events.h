/* Events, of which a process hears that waits for them. */

struct nvmlEventSet_st {
    uint64_t next;
    uint64_t mask[FAKE_CARDS];
    uint64_t from[FAKE_CARDS];
};
#define EVENT_TYPES 0x19fULL

API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    SYSTEM
    if (!(*set = calloc(1, sizeof **set)))
        return NO_MEMORY;
    (*set)->next = __atomic_load_n(&the_state()->event_count, __ATOMIC_ACQUIRE);
    return OK;
}

API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) { SYSTEM free(set); return OK; }

GIVES(nvmlDeviceGetSupportedEventTypes, unsigned long long, EVENT_TYPES)

/* What happened before is lost, as with the real one. */
API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    REACH
    if (!set || types & ~EVENT_TYPES)
        return set ? UNSUPPORTED : INVALID;
    if (!set->mask[device - devices])
        set->from[device - devices] = __atomic_load_n(&the_state()->event_count, __ATOMIC_ACQUIRE);
    set->mask[device - devices] |= types;
    return OK;
}

static bool next_event(struct state *state, nvmlEventSet_t set, nvmlEventData_t *data)
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
        *data = (nvmlEventData_t){.device = &devices[event.card], .eventType = event.type, .eventData = event.data,
                                    .gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX};
        return true;
    }
    return false;
}

/* NVML says that it gives GPU_IS_LOST where one of the cards it watches is: at once, each time. */
static int wait_event(const char *function, nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
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

API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    return wait_event(__func__, set, data, timeout_ms);
}

API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    return wait_event(__func__, set, data, timeout_ms);
}
