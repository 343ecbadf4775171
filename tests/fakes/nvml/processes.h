/* Processes on a card. */

struct running {
    unsigned pid;
    unsigned long long bytes;
    unsigned instance, compute_instance;
};

/* `part` -1: of the whole card. */
static int running(struct card *card, int part, bool graphics, unsigned *count, struct running *into)
{
    struct process list[FAKE_PROCESSES];
    int all = processes(card, list);
    unsigned kept = 0, room = *count;
    for (int i = 0; i < all; i++)
        if (!(list[i].flags & PROCESS_GRAPHICS) == !graphics
            && (part < 0 || list[i].flags / PROCESS_INSTANCE == part + 1))
            list[kept++] = list[i];
    *count = kept;
    if (kept > room)
        return TOO_SMALL;
    if (kept && !into)
        return INVALID;
    for (unsigned i = 0; i < kept; i++)
        into[i] = (struct running){.pid = (unsigned)list[i].pid,
                                   .bytes = list[i].flags & PROCESS_UNTOLD ? TOLD_NOTHING : list[i].bytes,
                                   .instance = list[i].flags / PROCESS_INSTANCE ? 6u + list[i].flags / PROCESS_INSTANCE
                                                                                : UINT32_MAX,
                                   .compute_instance = list[i].flags / PROCESS_INSTANCE ? 0 : UINT32_MAX};
    return OK;
}

#define RUNNING(name, graphics)                                                                                        \
    API int name(struct device *device, unsigned *count, struct running *into)                                         \
    {                                                                                                                  \
        REACH_PART                                                                                                     \
        return count ? running(card, part, graphics, count, into) : INVALID;                                                 \
    }
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, false)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, false)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, true)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, true)

API int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *device, unsigned *count, struct running *into)
{
    REACH_PART
    (void)into;
    *count = 0;
    return OK;
}

struct process_sample {
    unsigned pid;
    unsigned long long at;
    unsigned sm, memory, encoder, decoder;
};

/* An idle card is "not found". */
API int nvmlDeviceGetProcessUtilization(struct device *device, struct process_sample *into, unsigned *count,
                                        unsigned long long since)
{
    REACH
    struct process list[FAKE_PROCESSES];
    unsigned all = (unsigned)processes(card, list), room = *count;
    unsigned util = percent(MOVING(card, util)), memory = percent(MOVING(card, mem_util));
    (void)since;
    if (NOW(card->mig) == 1)
        return UNSUPPORTED;
    *count = all;
    if (!all || !util)
        return NOT_FOUND;
    if (!into || room < all)
        return TOO_SMALL;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (unsigned i = 0; i < all; i++)
        into[i] = (struct process_sample){.pid = (unsigned)list[i].pid,
                                          .at = (unsigned long long)now.tv_sec * 1000000 + (unsigned)now.tv_nsec / 1000,
                                          .sm = util / all,
                                          .memory = memory / all};
    return OK;
}
