/* Which cards there are, and what is remembered of each. */

/* The place of the card of this NVML number: those that are not there have none. -1: there is none. */
static int place_of(struct state *state, unsigned index)
{
    for (int place = 0; place < NOW(state->card_count); place++)
        if (NOW(state->cards[place].present) && index-- == 0)
            return place;
    return -1;
}

static int handle(const char *function, int place, nvmlDevice_t *out)
{
    struct card *card = NULL;
    if (place < 0)
        return NOT_FOUND;
    int code = reach(function, &devices[place], &card);
    /* A card that wants a reset can be had, and is refused later. */
    if (code && code != 16)
        return code;
    *out = &devices[place];
    return OK;
}

static int count_cards(const char *function, unsigned *count)
{
    int code = enter(function, NULL, NULL);
    if (code)
        return code;
    for (*count = 0; place_of(the_state(), *count) >= 0;)
        ++*count;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) { return count_cards(__func__, count); }
API nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return count_cards(__func__, count); }

static int by_index(const char *function, unsigned index, nvmlDevice_t *device)
{
    struct state *state = the_state();
    if (!state || atomic_load(&users) == 0)
        return UNINITIALIZED;
    int place = place_of(state, index);
    return place < 0 ? INVALID : handle(function, place, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    return by_index(__func__, index, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return by_index(__func__, index, device);
}

/* "00000000:9D:00.0", "0000:9d:00.0" and "9d:00.0" are the same. */
static bool same_bus(const char *one, const char *other)
{
    unsigned a[4] = {0}, b[4] = {0};
    if (sscanf(one, "%x:%x:%x.%x", &a[0], &a[1], &a[2], &a[3]) != 4
        && (a[0] = 0, sscanf(one, "%x:%x.%x", &a[1], &a[2], &a[3])) != 3)
        return false;
    if (sscanf(other, "%x:%x:%x.%x", &b[0], &b[1], &b[2], &b[3]) != 4)
        return false;
    return !memcmp(a, b, sizeof a);
}

#define BY(name, matches)                                                                                              \
    API nvmlReturn_t name(const char *wanted, nvmlDevice_t *device)                                                           \
    {                                                                                                                  \
        SYSTEM                                                                                                         \
        struct state *state = the_state();                                                                             \
        for (int place = 0; place < NOW(state->card_count); place++) {                                                 \
            struct card *card = &state->cards[place];                                                                  \
            if (NOW(card->present) && (matches))                                                                       \
                return handle("nvmlDeviceGetHandleByIndex_v2", place, device);                                         \
        }                                                                                                              \
        return NOT_FOUND;                                                                                              \
    }
BY(nvmlDeviceGetHandleByPciBusId_v2, same_bus(wanted, card->bus_id))
BY(nvmlDeviceGetHandleByUUID, !strcmp(wanted, card->uuid))
BY(nvmlDeviceGetHandleBySerial, !strcmp(wanted, card->serial))

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    REMEMBERED
    for (*index = 0; place_of(the_state(), *index) != device - devices; ++*index)
        if (place_of(the_state(), *index) < 0)
            return NOT_FOUND;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *into, unsigned room)
{
    int part = part_of(&device);
    REMEMBERED
    char name[160];
    snprintf(name, sizeof name, part < 0 ? "%s" : "%s MIG 1g.%dgb", card->model, (int)(NOW(card->mem_total) >> 33));
    return text(into, room, name);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *into, unsigned room)
{
    int part = part_of(&device);
    REMEMBERED
    char uuid[128];
    if (part >= NOW(card->mig_count))
        return INVALID;
    /* "MIG-0-fa4e0003-..." of "GPU-fa4e0003-..." would be none: the first part counts the instance. */
    if (part < 0)
        return text(into, room, card->uuid);
    snprintf(uuid, sizeof uuid, "MIG-%08x%s", 0xa19 + part, strchr(card->uuid + 4, '-') ?: "");
    return text(into, room, uuid);
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    REMEMBERED
    *minor = (unsigned)card->minor;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned *id)
{
    REMEMBERED
    *id = (unsigned)card->minor + 1;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *into, unsigned room)
{
    REACH
    return text(into, room, "96.00.74.00.01");
}

API nvmlReturn_t nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *into, unsigned room)
{
    REACH
    return text(into, room, "000-00000-0000-000");
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *into, unsigned room)
{
    REMEMBERED
    return card->serial[0] ? text(into, room, card->serial) : UNSUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    REMEMBERED
    *major = NOW(card->capability) / 10;
    *minor = NOW(card->capability) % 10;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode)
{
    REMEMBERED
    *mode = (nvmlGpuVirtualizationMode_t)NOW(card->virtualization);
    return OK;
}


static void fill_pci(nvmlPciInfo_t *pci, const char *bus_id)
{
    unsigned function = 0;
    memset(pci, 0, sizeof *pci);
    sscanf(bus_id, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.%X", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0xff, function & 7);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.%X", pci->domain, pci->bus & 0xff, pci->device & 0xff,
             function & 7);
    pci->pciDeviceId = 0x233010de;
    pci->pciSubSystemId = 0x16c110de;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    REMEMBERED
    fill_pci(pci, card->bus_id);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    REMEMBERED
    fill_pci(pci, card->bus_id);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    REMEMBERED
    fill_pci(pci, card->bus_id);
    return OK;
}
