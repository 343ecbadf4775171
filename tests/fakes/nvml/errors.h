/* Errors of memory, and rows that were replaced for them. */

#define WITH_ECC                                                                                                       \
    REACH                                                                                                              \
    if (NOW(card->ecc_on) != 1)                                                                                        \
        return UNSUPPORTED;

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *now, unsigned *pending)
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

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter, unsigned long long *count)
{
    WITH_ECC
    if (type > 1 || counter > 1)
        return INVALID;
    *count = ecc(card, type == 1, counter == 1, true, true);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned type, unsigned counter, unsigned where,
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


API nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_v1_t *sram)
{
    WITH_ECC
    if (sram->version != 0x01000068)
        return VERSION;
    memset(&sram->aggregateUncParity, 0, sizeof *sram - offsetof(nvmlEccSramErrorStatus_v1_t, aggregateUncParity));
    sram->volatileCor = sram->aggregateCor = NOW(card->sram_corrected);
    sram->volatileUncSecDed = sram->aggregateUncSecDed = NOW(card->sram_uncorrected);
    sram->aggregateUncBucketSm = sram->volatileUncSecDed;
    sram->bThresholdExceeded = sram->aggregateUncSecDed > 10;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
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

API nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, unsigned long long *pages)
{
    REACH
    (void)cause, (void)count, (void)pages;
    return UNSUPPORTED;
}
