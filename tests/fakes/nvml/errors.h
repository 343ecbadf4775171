/* Errors of memory, and rows that were replaced for them. */

#define WITH_ECC                                                                                                       \
    REACH                                                                                                              \
    if (NOW(card->ecc_on) != 1)                                                                                        \
        return UNSUPPORTED;

API int nvmlDeviceGetEccMode(struct device *device, unsigned *now, unsigned *pending)
{
    REACH
    if (NOW(card->ecc_on) < 0)
        return UNSUPPORTED;
    *now = *pending = NOW(card->ecc_on) == 1;
    return OK;
}

static uint64_t ecc(struct card *card, bool uncorrected, bool aggregate, bool sram, bool dram)
{
    uint64_t sum = 0;
    if (sram)
        sum += uncorrected ? NOW(card->sram_uncorrected) : NOW(card->sram_corrected);
    if (dram)
        sum += uncorrected ? NOW(card->dram_uncorrected) : NOW(card->dram_corrected);
    if (aggregate && dram)
        sum += uncorrected ? NOW(card->old_uncorrected) : NOW(card->old_corrected);
    return sum;
}

API int nvmlDeviceGetTotalEccErrors(struct device *device, unsigned type, unsigned counter, unsigned long long *count)
{
    WITH_ECC
    if (type > 1 || counter > 1)
        return INVALID;
    *count = ecc(card, type == 1, counter == 1, true, true);
    return OK;
}

API int nvmlDeviceGetMemoryErrorCounter(struct device *device, unsigned type, unsigned counter, unsigned where,
                                        unsigned long long *count)
{
    WITH_ECC
    if (type > 1 || counter > 1 || where > 7)
        return INVALID;
    if (where != 2 && where != 7)
        return UNSUPPORTED;
    *count = ecc(card, type == 1, counter == 1, where == 7, where == 2);
    return OK;
}

struct sram {
    unsigned version;
    unsigned long long old_parity, old_secded, old_corrected, parity, secded, corrected, buckets[5];
    unsigned exceeded;
};

API int nvmlDeviceGetSramEccErrorStatus(struct device *device, struct sram *sram)
{
    WITH_ECC
    if (sram->version != 0x01000068)
        return VERSION;
    memset(&sram->old_parity, 0, sizeof *sram - offsetof(struct sram, old_parity));
    sram->corrected = sram->old_corrected = NOW(card->sram_corrected);
    sram->secded = sram->old_secded = NOW(card->sram_uncorrected);
    sram->buckets[1] = sram->secded;
    sram->exceeded = sram->old_secded > 10;
    return OK;
}

API int nvmlDeviceGetRemappedRows(struct device *device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                  unsigned *failure)
{
    REACH
    if (NOW(card->remapped_correctable) < 0)
        return UNSUPPORTED;
    *corrected = (unsigned)NOW(card->remapped_correctable);
    *uncorrected = (unsigned)NOW(card->remapped_uncorrectable);
    *pending = NOW(card->remapped_pending) != 0;
    *failure = NOW(card->remapped_failure) != 0;
    return OK;
}

API int nvmlDeviceGetRetiredPages(struct device *device, unsigned cause, unsigned *count, unsigned long long *pages)
{
    REACH
    (void)cause, (void)count, (void)pages;
    return UNSUPPORTED;
}
