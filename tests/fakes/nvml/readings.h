/* Utilization, memory, power, temperatures, clocks, modes. */


/* Of a MIG instance a 7th, and its own processes. */
static uint64_t part_used(struct card *card, int part)
{
    struct process list[FAKE_PROCESSES];
    int count = processes(card, list);
    uint64_t used = 0;
    for (int i = 0; i < count; i++)
        if (list[i].flags / PROCESS_INSTANCE == part + 1)
            used += list[i].bytes;
    return used;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    REACH_PART
    memory->total = part < 0 ? NOW(card->mem_total) : NOW(card->mem_total) / 7;
    memory->used = part < 0 ? memory_used(card) + NOW(card->mem_reserved) : part_used(card, part);
    memory->free = memory->total - memory->used;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    REACH_PART
    if (memory->version != 0x02000028)
        return VERSION;
    memory->total = part < 0 ? NOW(card->mem_total) : NOW(card->mem_total) / 7;
    memory->reserved = part < 0 ? NOW(card->mem_reserved) : 0;
    memory->used = part < 0 ? memory_used(card) : part_used(card, part);
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    REACH
    memory->bar1Total = 128ULL << 30;
    memory->bar1Used = 2ULL << 20;
    memory->bar1Free = memory->bar1Total - memory->bar1Used;
    return OK;
}

/* A value that cannot be, such as (unsigned)-1, stays what it is. */
static unsigned percent(double value)
{
    if (value > 1000)
        return (unsigned)value;
    return value <= 0 ? 0 : value >= 100 ? 100 : (unsigned)(value + 0.5);
}
static unsigned milliwatts(struct card *card) { return (unsigned)(MOVING(card, power_w) * 1000 + 0.5); }
static int degrees(struct card *card) { return (int)(MOVING(card, temp_c) + 0.5); }

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    REACH
    if (NOW(card->mig) == 1)
        return UNSUPPORTED;
    rates->gpu = percent(MOVING(card, util));
    rates->memory = percent(MOVING(card, mem_util));
    return OK;
}

API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *util, unsigned *period_us)
{
    REACH
    if (NOW(card->mig) == 1)
        return UNSUPPORTED;
    *util = (unsigned)NOW(card->encoder);
    *period_us = 167000;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *util, unsigned *period_us)
{
    REACH
    if (NOW(card->mig) == 1)
        return UNSUPPORTED;
    *util = (unsigned)NOW(card->decoder);
    *period_us = 167000;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *value)
{
    REACH
    if (sensor)
        return INVALID;
    *value = (unsigned)degrees(card);
    return OK;
}


API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    REACH
    if (temperature->version != 0x0100000c)
        return VERSION;
    if (temperature->sensorType)
        return INVALID;
    temperature->temperature = degrees(card);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned which, unsigned *value)
{
    REACH
    int limits[] = {NOW(card->shutdown_c), NOW(card->slowdown_c), NOW(card->mem_max_c), NOW(card->gpu_max_c)};
    if (which > 3 || limits[which] < 0)
        return UNSUPPORTED;
    *value = (unsigned)limits[which];
    return OK;
}

GIVES(nvmlDeviceGetPowerUsage, unsigned, milliwatts(card))
GIVES(nvmlDeviceGetPowerManagementLimit, unsigned, NOW(card->power_limit_mw))
GIVES(nvmlDeviceGetEnforcedPowerLimit, unsigned, NOW(card->power_limit_mw))
GIVES(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, NOW(card->power_max_mw))
GIVES(nvmlDeviceGetPowerManagementMode, unsigned, 1)
GIVES(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj(card))
GIVES(nvmlDeviceGetPowerState, unsigned, 0)
GIVES(nvmlDeviceGetPerformanceState, unsigned, 0)
GIVES(nvmlDeviceGetPersistenceMode, unsigned, NOW(card->persistence))
GIVES(nvmlDeviceGetComputeMode, unsigned, 0)
GIVES(nvmlDeviceGetBrand, unsigned, 14)
GIVES(nvmlDeviceGetArchitecture, unsigned, 9)
GIVES(nvmlDeviceGetNumGpuCores, unsigned, 16896)
GIVES(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, NOW(card->event_reasons))
GIVES(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, NOW(card->event_reasons))
GIVES(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1ff)
GIVES(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, NOW(card->pcie_gen))
GIVES(nvmlDeviceGetCurrPcieLinkWidth, unsigned, NOW(card->pcie_width))
GIVES(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, NOW(card->pcie_gen_max))
GIVES(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, NOW(card->pcie_gen_max))
GIVES(nvmlDeviceGetMaxPcieLinkWidth, unsigned, NOW(card->pcie_width_max))
GIVES(nvmlDeviceGetPcieReplayCounter, unsigned, NOW(card->pcie_replay))
GIVES_IF(nvmlDeviceGetFanSpeed, unsigned, -1)
GIVES_IF(nvmlDeviceGetRetiredPagesPendingStatus, unsigned, -1)
GIVES(nvmlDeviceGetMaxMigDeviceCount, unsigned, NOW(card->mig) == 1 ? 7 : 0)

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
    REACH
    *least = 200000;
    *most = (unsigned)NOW(card->power_max_mw);
    return OK;
}

static int clock_of(struct card *card, unsigned type, bool most, unsigned *mhz)
{
    int sm = most ? NOW(card->sm_clock_max_mhz) : NOW(card->sm_clock_mhz);
    int memory = most ? NOW(card->mem_clock_max_mhz) : NOW(card->mem_clock_mhz);
    if (type > 3)
        return INVALID;
    *mhz = (unsigned)(type == 2 ? memory : sm);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    REACH
    return clock_of(card, type, false, mhz);
}

static unsigned app_clock(struct card *card)
{
    return (unsigned)(NOW(card->app_clock_mhz) ? NOW(card->app_clock_mhz) : NOW(card->sm_clock_max_mhz));
}

API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned *mhz)
{
    REACH
    *mhz = type == NVML_CLOCK_MEM ? (unsigned)NOW(card->mem_clock_max_mhz) : app_clock(card);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, nvmlClockType_t type, unsigned *mhz)
{
    REACH
    *mhz = (unsigned)(type == NVML_CLOCK_MEM ? NOW(card->mem_clock_max_mhz) : NOW(card->sm_clock_max_mhz));
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    REACH
    return clock_of(card, type, true, mhz);
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz)
{
    REACH
    return id > 3 ? INVALID : clock_of(card, type, id == 3, mhz);
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kbps)
{
    REACH
    if (counter > 1)
        return INVALID;
    *kbps = (unsigned)(counter ? NOW(card->pcie_rx_kbps) : NOW(card->pcie_tx_kbps));
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *pending)
{
    REACH
    if (NOW(card->mig) < 0)
        return UNSUPPORTED;
    *now = *pending = NOW(card->mig) == 1;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
    REACH
    if (NOW(card->mig) != 1)
        return UNSUPPORTED;
    if (index >= 7)
        return INVALID;
    if ((int)index >= NOW(card->mig_count))
        return NOT_FOUND;
    *mig = &migs[(device - devices) * FAKE_INSTANCES + index];
    return OK;
}

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is)
{
    REACH_PART
    *is = part >= 0;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device_of)
{
    nvmlDevice_t device = mig;
    REACH_PART
    if (part < 0)
        return INVALID;
    *device_of = device;
    return OK;
}

/* Instances of one slice each: 7 to 13, with one compute instance. */
API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    REACH_PART
    *id = 7 + (unsigned)part;
    return part < 0 ? NOT_FOUND : OK;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    REACH_PART
    *id = 0;
    return part < 0 ? NOT_FOUND : OK;
}
