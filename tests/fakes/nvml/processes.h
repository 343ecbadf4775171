/* Processes on a card. */


/* `part` -1: of the whole card. */
static int running(struct card *card, int part, bool graphics, unsigned *count, nvmlProcessInfo_t *into)
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
        into[i] = (nvmlProcessInfo_t){.pid = (unsigned)list[i].pid,
                                   .usedGpuMemory = list[i].flags & PROCESS_UNTOLD ? TOLD_NOTHING : list[i].bytes,
                                   .gpuInstanceId = list[i].flags / PROCESS_INSTANCE ? 6u + list[i].flags / PROCESS_INSTANCE
                                                                                : UINT32_MAX,
                                   .computeInstanceId = list[i].flags / PROCESS_INSTANCE ? 0 : UINT32_MAX};
    return OK;
}

#define RUNNING(name, graphics)                                                                                        \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *into)                                         \
    {                                                                                                                  \
        REACH_PART                                                                                                     \
        return count ? running(card, part, graphics, count, into) : INVALID;                                                 \
    }
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, false)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, false)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, true)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, true)

API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *into)
{
    REACH_PART
    (void)into;
    *count = 0;
    return OK;
}


/* An idle card is "not found". */
API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *into, unsigned *count,
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
        into[i] = (nvmlProcessUtilizationSample_t){.pid = (unsigned)list[i].pid,
                                          .timeStamp = (unsigned long long)now.tv_sec * 1000000 + (unsigned)now.tv_nsec / 1000,
                                          .smUtil = util / all,
                                          .memUtil = memory / all};
    return OK;
}
