/* Values that are asked for by a number, several at a time. */

enum { DOUBLE = 0, UI = 1, ULL = 3, SI = 5 };

static void give(nvmlFieldValue_t *field, unsigned type, uint64_t value)
{
    field->valueType = type;
    field->value.ullVal = 0;
    if (type == ULL)
        field->value.ullVal = value;
    else
        field->value.uiVal = (unsigned)value;
}

/* The number of links, or 1 for one of them; 0: no such link. */
static uint64_t links_meant(struct card *card, unsigned scope)
{
    int links = NOW(card->link_count);
    return scope == UINT32_MAX ? (uint64_t)links : scope < (unsigned)links;
}

static int one_field(struct card *card, nvmlFieldValue_t *field)
{
    uint64_t links = NOW(card->link_count) > 0 ? (uint64_t)NOW(card->link_count) : 0;
    uint64_t half = fabric_bytes(card) / 2, meant;
    bool has_ecc = NOW(card->ecc_on) == 1, remaps = NOW(card->remapped_correctable) >= 0;
    switch (field->fieldId) {
    case 1: give(field, UI, has_ecc); return NOW(card->ecc_on) < 0 ? UNSUPPORTED : OK;
    case 3: give(field, ULL, ecc(card, false, false, true, true)); return has_ecc ? OK : UNSUPPORTED;
    case 4: give(field, ULL, ecc(card, true, false, true, true)); return has_ecc ? OK : UNSUPPORTED;
    case 5: give(field, ULL, ecc(card, false, true, true, true)); return has_ecc ? OK : UNSUPPORTED;
    case 6: give(field, ULL, ecc(card, true, true, true, true)); return has_ecc ? OK : UNSUPPORTED;
    case 11: give(field, ULL, ecc(card, false, false, false, true)); return has_ecc ? OK : UNSUPPORTED;
    case 12: give(field, ULL, ecc(card, true, false, false, true)); return has_ecc ? OK : UNSUPPORTED;
    case 82: give(field, UI, (uint64_t)NOW(card->mem_temp_c)); return NOW(card->mem_temp_c) < 0 ? UNSUPPORTED : OK;
    case 83: give(field, ULL, energy_mj(card)); return OK;
    case 90: give(field, UI, 26562); return links ? OK : UNSUPPORTED;
    case 91: give(field, UI, links); return links ? OK : UNSUPPORTED;
    case 94: give(field, UI, (uint64_t)NOW(card->pcie_replay)); return OK;
    /* KiB of data, and of all; of one link (the scope), or of all links. */
    case 138: case 139: case 140: case 141:
        if (!links || NOW(card->link_version) > 4)
            return UNSUPPORTED;
        if (!(meant = links_meant(card, field->scopeId)))
            return INVALID;
        give(field, ULL, half * meant / links / 1024);
        return OK;
    /* Errors of one link: all are the first one's. Of links of the next version: of all links alone. */
    case 161: case 162: case 163:
        if (!links || NOW(card->link_version) > 4)
            return UNSUPPORTED;
        if (field->scopeId >= links)
            return INVALID;
        give(field, ULL, field->scopeId || field->fieldId == 161 ? 0
             : (uint64_t)(field->fieldId == 162 ? NOW(card->link_recoveries) : NOW(card->link_crc)));
        return OK;
    case 213: case 214: case 219:
        if (!links || NOW(card->link_version) <= 4)
            return UNSUPPORTED;
        give(field, ULL, field->fieldId == 214 ? 0
             : (uint64_t)(field->fieldId == 213 ? NOW(card->link_recoveries) : NOW(card->link_crc)));
        return OK;
    /* Pages out of use: for one bit, for two. */
    case 29: give(field, ULL, 0); return NOW(card->retired_pages) < 0 ? UNSUPPORTED : OK;
    case 30: give(field, ULL, (uint64_t)NOW(card->retired_pages)); return NOW(card->retired_pages) < 0 ? UNSUPPORTED : OK;
    case 31: give(field, ULL, NOW(card->retired_pending) != 0); return NOW(card->retired_pages) < 0 ? UNSUPPORTED : OK;
    /* Bytes, of links of the next version. */
    case 202: case 204:
        if (!links || NOW(card->link_version) <= 4)
            return UNSUPPORTED;
        if (!(meant = links_meant(card, field->scopeId)))
            return INVALID;
        give(field, ULL, half * meant / links);
        return OK;
    case 142: give(field, UI, (uint64_t)NOW(card->remapped_correctable)); return remaps ? OK : UNSUPPORTED;
    case 143: give(field, UI, (uint64_t)NOW(card->remapped_uncorrectable)); return remaps ? OK : UNSUPPORTED;
    case 144: give(field, UI, NOW(card->remapped_pending) != 0); return remaps ? OK : UNSUPPORTED;
    case 145: give(field, UI, NOW(card->remapped_failure) != 0); return remaps ? OK : UNSUPPORTED;
    case 164:
        if (!links)
            return UNSUPPORTED;
        if (field->scopeId >= links)
            return INVALID;
        give(field, UI, NOW(card->link_up) >> field->scopeId & 1 ? 26562 : 0);
        return OK;
    case 165:
        if (!links)
            return UNSUPPORTED;
        if (field->scopeId >= links)
            return INVALID;
        give(field, UI, NOW(card->link_up) >> field->scopeId & 1);
        return OK;
    case 185: case 186: give(field, UI, milliwatts(card)); return OK;
    case 187: give(field, UI, 200000); return OK;
    case 188: case 189: give(field, UI, (uint64_t)NOW(card->power_max_mw)); return OK;
    case 190: case 192: give(field, UI, (uint64_t)NOW(card->power_limit_mw)); return OK;
    case 193: give(field, SI, (uint64_t)(NOW(card->gpu_max_c) - NOW(card->shutdown_c))); return OK;
    case 194: give(field, SI, (uint64_t)(NOW(card->gpu_max_c) - NOW(card->slowdown_c))); return OK;
    case 195: give(field, SI, 0); return OK;
    case 196: give(field, SI, 0); return OK;
    case 230:
        give(field, UI, (uint64_t)NOW(card->recovery_action));
        return NOW(card->recovery_action) < 0 ? UNSUPPORTED : OK;
    default: return UNSUPPORTED;
    }
}

/* A field that fails does so alone; a fault of one is set as "field:<id>". */
API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    REACH
    struct timespec now;
    char name[32];
    if (count <= 0 || !fields)
        return INVALID;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        fields[i].latencyUsec = 0;
        fields[i].nvmlReturn = 0;
        if (NOW(card->fault_count)) {
            snprintf(name, sizeof name, "field:%u", fields[i].fieldId);
            fields[i].nvmlReturn = obey(the_state(), card->faults, &card->fault_count, name);
        }
        if (!fields[i].nvmlReturn) {
            fields[i].nvmlReturn = one_field(card, &fields[i]);
        } else if (fields[i].nvmlReturn == FAKE_NAN || fields[i].nvmlReturn == FAKE_ALL_BITS) {
            if (fields[i].nvmlReturn == FAKE_NAN)
                fields[i].valueType = DOUBLE, fields[i].value.dVal = __builtin_nan("");
            else
                give(&fields[i], ULL, UINT64_MAX);
            fields[i].nvmlReturn = OK;
        }
    }
    return OK;
}
