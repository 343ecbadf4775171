/* Utilization, memory, power, temperatures, health, processes, traffic. */

static unsigned percent(double value) { return value <= 0 ? 0 : (unsigned)(value + 0.5); }
static uint64_t to_mb(uint64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }

BOTH(dcmi_get_device_utilization_rate, dcmiv2_get_device_utilization_rate, (int type, unsigned *value), {
    if (type < 1 || type > 31 || !value)
        return PARAMETER;
    if (!(NOW(card->util_types) >> type & 1))
        return UNSUPPORTED;
    double total = (double)NOW(card->mem_total), used = (double)(memory_used(card) + NOW(card->mem_reserved));
    switch (type) {
    case 2: *value = NOW(card->npu_profiled) ? 0 : percent(MOVING(card, util)); break;
    case 3: *value = percent(NOW(card->aicpu)); break;
    case 4: *value = percent(NOW(card->ctrlcpu)); break;
    case 6: *value = total > 0 ? percent(100 * used / total) : 0; break;
    case 10: *value = percent(MOVING(card, mem_util)); break;
    case 12: *value = NOW(card->npu_profiled) ? 0 : percent(NOW(card->vector)); break;
    case 13: *value = NOW(card->overall) < 0 ? percent(MOVING(card, util)) : percent(NOW(card->overall)); break;
    default: return UNSUPPORTED;
    }
    /* As the real one: more than there can be is none, and no error. */
    if (*value > 100)
        *value = 0;
    return OK;
})

BOTH(dcmi_get_device_temperature, dcmiv2_get_device_temperature, (int *value),
     { *value = (int)(MOVING(card, temp_c) + 0.5); return OK; })
/* Of a board as a whole, which its first chip tells. */
BOTH(dcmi_get_device_power_info, dcmiv2_get_device_power_info, (int *tenths), {
    if (NOW(card->chip))
        return UNSUPPORTED;
    *tenths = (int)(MOVING(card, power_w) * 10 + 0.5);
    return OK;
})
BOTH(dcmi_get_device_voltage, dcmiv2_get_device_voltage, (unsigned *hundredths),
     { *hundredths = (unsigned)NOW(card->voltage_mv) / 10; return OK; })
BOTH(dcmi_get_device_health, dcmiv2_get_device_health, (unsigned *health),
     { *health = NOW(card->npu_health) < 0 ? ABSENT : (unsigned)NOW(card->npu_health); return OK; })
BOTH(dcmi_get_device_network_health, dcmiv2_get_device_network_health, (int *result),
     { *result = NOW(card->npu_network); return OK; })
BOTH(dcmi_get_device_boot_status, dcmiv2_get_device_boot_status, (int *status),
     { *status = NOW(card->npu_boot); return OK; })

BOTH(dcmi_get_device_frequency, dcmiv2_get_device_frequency, (int type, unsigned *mhz), {
    switch (type) {
    case 6: *mhz = (unsigned)NOW(card->mem_clock_mhz); return OK;
    case 7: *mhz = (unsigned)NOW(card->sm_clock_mhz); return OK;
    case 9: *mhz = (unsigned)NOW(card->sm_clock_max_mhz); return OK;
    default: return type < 0 ? PARAMETER : UNSUPPORTED;
    }
})

struct hbm {
    unsigned long long size_mb;
    unsigned mhz;
    unsigned long long used_mb;
    int temperature;
    unsigned bandwidth;
};
BOTH(dcmi_get_device_hbm_info, dcmiv2_get_device_hbm_info, (struct hbm *hbm), {
    hbm->size_mb = NOW(card->mem_total) >> 20;
    hbm->mhz = (unsigned)NOW(card->mem_clock_mhz);
    hbm->used_mb = to_mb(memory_used(card) + NOW(card->mem_reserved));
    hbm->temperature = NOW(card->mem_temp_c);
    hbm->bandwidth = percent(MOVING(card, mem_util));
    return OK;
})

struct ecc {
    int enabled;
    unsigned single, twice, all_single, all_twice, single_isolated, twice_isolated;
};
BOTH(dcmi_get_device_ecc_info, dcmiv2_get_device_ecc_info, (int type, struct ecc *ecc), {
    if (type != 2)
        return type < 0 ? PARAMETER : UNSUPPORTED;
    ecc->enabled = NOW(card->ecc_on) == 1;
    ecc->single = (unsigned)NOW(card->dram_corrected);
    ecc->twice = (unsigned)NOW(card->dram_uncorrected);
    ecc->all_single = (unsigned)(NOW(card->dram_corrected) + NOW(card->old_corrected));
    ecc->all_twice = (unsigned)(NOW(card->dram_uncorrected) + NOW(card->old_uncorrected));
    ecc->single_isolated = (unsigned)NOW(card->remapped_correctable);
    ecc->twice_isolated = (unsigned)NOW(card->remapped_uncorrectable);
    return OK;
})

struct on_chip {
    int pid;
    unsigned long bytes;
};
/* The caller has room for 32, and cannot say so. */
BOTH(dcmi_get_device_resource_info, dcmiv2_get_device_proc_mem_info, (struct on_chip *into, int *count), {
    struct process list[FAKE_PROCESSES];
    int all = processes(card, list);
    *count = all < MOST_PROCESSES ? all : MOST_PROCESSES;
    for (int i = 0; i < *count; i++)
        into[i] = (struct on_chip){.pid = list[i].pid, .bytes = list[i].bytes};
    return OK;
})

struct netdev {
    unsigned long long counters[52];
    long seconds, microseconds;
    unsigned char reserved[64];
};
/* Bytes sent and received are numbers 21 and 25: half of the traffic each. */
BOTH(dcmi_get_netdev_pkt_stats_info, dcmiv2_get_netdev_pkt_stats_info, (int port, struct netdev *stats), {
    if (port != 0)
        return PARAMETER;
    memset(stats, 0, sizeof *stats);
    stats->counters[21] = stats->counters[25] = fabric_bytes(card) / 2;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    stats->seconds = now.tv_sec;
    stats->microseconds = now.tv_nsec / 1000;
    return OK;
})

struct ub {
    int link, port[36];
};
API int dcmiv2_get_ub_port_link_status(int logic, struct ub *status)
{
    struct card *card = by_logic(logic);
    int code = enter(__func__, 2, card);
    if (code || !card)
        return code ? code : BAD_ID;
    memset(status, 0, sizeof *status);
    int up = 0, links = NOW(card->link_count);
    for (int i = 0; i < links && i < FAKE_LINKS; i++) {
        status->port[i] = NOW(card->link_up) >> i & 1 ? 1 : 3;
        up += status->port[i] == 1;
    }
    status->link = links <= 0 ? 3 : up == 0 ? 0 : up == links ? 1 : 2;
    return OK;
}
