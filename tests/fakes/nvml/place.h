/* Where a card is: CPUs, NUMA nodes, and the links to others. */

static int affinity(struct card *card, unsigned words, unsigned long *mask)
{
    if (!words || !mask)
        return INVALID;
    for (unsigned i = 0; i < words; i++)
        mask[i] = i < FAKE_CPU_WORDS ? (unsigned long)NOW(card->cpu_mask[i]) : 0;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *mask)
{
    REACH
    return affinity(card, words, mask);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *mask, unsigned scope)
{
    REACH
    return scope > 1 ? INVALID : affinity(card, words, mask);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *mask, unsigned scope)
{
    REACH
    int node = NOW(card->numa_node);
    if (!words || !mask || scope > 1)
        return INVALID;
    if (node < 0 || node >= (int)words * 64)
        return UNSUPPORTED;
    memset(mask, 0, words * sizeof *mask);
    mask[node / 64] = 1UL << (node % 64);
    return OK;
}

/* Only for cards whose own memory is a node of the host, which ours never is. */
API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node) { REACH (void)node; return UNSUPPORTED; }

static bool joined(struct card *one, struct card *other, struct state *state)
{
    int place = (int)(other - state->cards);
    bool switched = false, theirs = false;
    for (int i = 0; i < NOW(one->link_count) && i < FAKE_LINKS; i++)
        if (NOW(one->link_up) >> i & 1) {
            if (NOW(one->link_end[i]) == place)
                return true;
            switched |= NOW(one->link_end[i]) >= FAKE_SWITCH;
        }
    for (int i = 0; i < NOW(other->link_count) && i < FAKE_LINKS; i++)
        theirs |= (NOW(other->link_up) >> i & 1) && NOW(other->link_end[i]) >= FAKE_SWITCH;
    return switched && theirs;
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned what, unsigned *status)
{
    REACH
    struct card *second = NULL;
    int code = reach(__func__, other, &second);
    if (code)
        return code;
    if (what > 5 || !status)
        return INVALID;
    *status = what == 2 && (device == other || !joined(card, second, the_state())) ? 5 : 0;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned *level)
{
    REACH
    struct card *second = NULL;
    int code = reach(__func__, other, &second);
    if (code)
        return code;
    *level = device == other ? 0 : NOW(card->numa_node) == NOW(second->numa_node) ? 40 : 50;
    return OK;
}

/* `card` has such a link, or the function ends. */
#define OF_LINK                                                                                                        \
    REACH                                                                                                              \
    if (NOW(card->link_count) <= 0)                                                                                    \
        return UNSUPPORTED;                                                                                            \
    if (link >= (unsigned)NOW(card->link_count) || link >= FAKE_LINKS)                                                 \
        return INVALID;

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *up)
{
    OF_LINK
    *up = NOW(card->link_up) >> link & 1;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    OF_LINK
    *version = (unsigned)NOW(card->link_version);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *type)
{
    OF_LINK
    int end = NOW(card->link_end[link]);
    *type = end >= FAKE_SWITCH ? 2 : end >= 0 ? 0 : 0xff;
    return NOW(card->link_up) >> link & 1 ? OK : UNSUPPORTED;
}

API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    OF_LINK
    int end = NOW(card->link_end[link]);
    char bus_id[32];
    if (!(NOW(card->link_up) >> link & 1) || end < 0)
        return UNSUPPORTED;
    snprintf(bus_id, sizeof bus_id, "0000:%02x:00.0", end >= FAKE_SWITCH ? (end - FAKE_SWITCH + 5) & 0xff : 0);
    fill_pci(pci, end >= FAKE_SWITCH ? bus_id : the_state()->cards[end].bus_id);
    if (end >= FAKE_SWITCH)
        pci->pciDeviceId = 0x22a310de;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter,
                                        unsigned long long *value)
{
    OF_LINK
    (void)counter;
    *value = 0;
    return OK;
}


API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *fabric)
{
    REACH
    memset(fabric, 0, sizeof *fabric);
    fabric->state = (unsigned char)NOW(card->fabric_state);
    fabric->status = (unsigned)NOW(card->fabric_status);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v3_t *fabric)
{
    REACH
    unsigned version = fabric->version;
    if (version != 0x02000024 && version != 0x03000028)
        return VERSION;
    memset(fabric->clusterUuid, 0, sizeof fabric->clusterUuid);
    fabric->status = (unsigned)NOW(card->fabric_status);
    fabric->cliqueId = 0;
    fabric->state = (unsigned char)NOW(card->fabric_state);
    fabric->healthMask = (unsigned)NOW(card->fabric_mask);
    if (version == 0x03000028)
        fabric->healthSummary = (unsigned char)NOW(card->fabric_health);
    return OK;
}
