/* Error codes: those that are raised, and events as they come and go. */

BOTH(dcmi_get_device_errorcode_v2, dcmiv2_get_device_error_code_list, (int *count, unsigned *codes, unsigned room), {
    int all = NOW(card->error_count);
    if (!count || !codes)
        return PARAMETER;
    if (all < 0 || all > FAKE_CODES) { /* no answer that makes sense */
        *count = all;
        return OK;
    }
    for (*count = 0; *count < all && *count < (int)room && *count < FAKE_CODES; ++*count)
        codes[*count] = NOW(card->errors[*count]);
    return OK;
})

BOTH(dcmi_get_device_errorcode_string, dcmiv2_get_device_error_info, (unsigned number, unsigned char *into, int room), {
    char value[64];
    (void)card;
    snprintf(value, sizeof value, "fault 0x%08X of the fake card", number);
    return room > 0 ? text((char *)into, (unsigned)room, value) : PARAMETER;
})

struct filter {
    unsigned long long flags;
    unsigned id;
    unsigned char severity, node_type, reserved[32];
};
struct fault_event {
    int type;
    struct {
        unsigned id;
        unsigned short device;
        unsigned char node_type, node, sub_node_type, sub_node, severity, assertion;
        int serial, notify_serial;
        unsigned long long raised_at;
        char name[256], info[32];
        unsigned char reserved[32];
    } fault;
};

/* The next event of one chip or, `card` NULL, of any, from `next` on. */
static bool take_event(struct state *state, struct card *card, _Atomic uint64_t *next, const struct filter *filter,
                       struct fault_event *out)
{
    uint64_t count = __atomic_load_n(&state->event_count, __ATOMIC_ACQUIRE), number;
    while ((number = atomic_load(next)) < count) {
        if (!atomic_compare_exchange_strong(next, &number, number + 1) || count - number > FAKE_EVENTS)
            continue;
        struct event event = state->events[number % FAKE_EVENTS];
        if (event.card < 0 || event.card >= FAKE_CARDS || (card && card != &state->cards[event.card])
            || (filter->flags & 1 && filter->id != event.data)
            || (filter->flags & 2 && event.severity < filter->severity))
            continue;
        memset(out, 0, sizeof *out);
        out->fault.id = (unsigned)event.data;
        out->fault.device = (unsigned short)logic_of(&state->cards[event.card]);
        out->fault.severity = (unsigned char)event.severity;
        out->fault.assertion = (unsigned char)event.assertion;
        out->fault.serial = out->fault.notify_serial = (int)number;
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        out->fault.raised_at = (unsigned long long)now.tv_sec * 1000 + (unsigned)(now.tv_nsec / 1000000);
        snprintf(out->fault.name, sizeof out->fault.name, "fault 0x%08X of the fake card", out->fault.id);
        return true;
    }
    return false;
}

static int next_fault(const char *function, int generation, struct card *card, int timeout_ms,
                      const struct filter *filter, struct fault_event *out)
{
    struct state *state = the_state();
    double end = now_s() + timeout_ms / 1000.0, left;
    int code;
    do {
        if ((code = enter(function, generation, card)))
            return code;
        if (!out)
            return PARAMETER;
        uint32_t seen = NOW(state->wake);
        if (take_event(state, card, &next_event[card ? card - state->cards : FAKE_CARDS], filter, out))
            return OK;
        left = end - now_s();
        if (left > 0)
            wait_for_change(state, seen, left);
    } while (left > 0);
    return TIMED_OUT;
}

/* -1, -1: of any chip. */
API int dcmi_get_fault_event(int board, int chip, int timeout_ms, struct filter filter, struct fault_event *out)
{
    struct card *card = by_pair(board, chip);
    if (!card && board != -1)
        return the_state() ? BAD_ID : INTERNAL;
    return next_fault(__func__, 1, card, timeout_ms, &filter, out);
}

API int dcmiv2_get_fault_event(int logic, int timeout_ms, struct filter filter, struct fault_event *out)
{
    struct card *card = by_logic(logic);
    if (!card && logic != -1)
        return the_state() ? BAD_ID : INTERNAL;
    return next_fault(__func__, 2, card, timeout_ms, &filter, out);
}

typedef void (*handler)(struct fault_event *);
static struct {
    _Atomic bool taken;
    _Atomic uint64_t next;
    struct card *card;
    struct filter filter;
    handler call;
} subscription;

static void *deliver(void *nothing)
{
    struct state *state = the_state();
    struct fault_event event;
    for (;;) {
        uint32_t seen = NOW(state->wake);
        while (take_event(state, subscription.card, &subscription.next, &subscription.filter, &event))
            subscription.call(&event);
        wait_for_change(state, seen, 1.0);
    }
    return nothing;
}

/* Once in a process; its thread takes no signals and lives as long as the process. */
static int subscribe(const char *function, int generation, struct card *card, struct filter filter, handler call)
{
    int code = enter(function, generation, card);
    pthread_t thread;
    sigset_t all, before;
    if (code || !call)
        return code ? code : PARAMETER;
    if (atomic_exchange(&subscription.taken, true))
        return OCCUPIED;
    subscription.card = card;
    subscription.filter = filter;
    subscription.call = call;
    atomic_store(&subscription.next, __atomic_load_n(&the_state()->event_count, __ATOMIC_ACQUIRE));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(&thread, NULL, deliver, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code) {
        atomic_store(&subscription.taken, false);
        return NO_MEMORY;
    }
    pthread_detach(thread);
    return OK;
}

API int dcmi_subscribe_fault_event(int board, int chip, struct filter filter, handler call)
{
    struct card *card = by_pair(board, chip);
    return card || board == -1 ? subscribe(__func__, 1, card, filter, call) : BAD_ID;
}

API int dcmiv2_subscribe_fault_event(int logic, struct filter filter, handler call)
{
    struct card *card = by_logic(logic);
    return card || logic == -1 ? subscribe(__func__, 2, card, filter, call) : BAD_ID;
}
