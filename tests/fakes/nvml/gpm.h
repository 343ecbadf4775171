/* GPM: samples, and what two of them say of the time between. As the library does, only the metrics that are asked for
 * are written to, by the number of the caller. */

struct nvmlGpmSample_st {
    struct card *card;
    int part;
    double at;
};

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    REACH
    if (support->version != 1)
        return VERSION;
    support->isSupportedDevice = NOW(card->gpm) != 0;
    return OK;
}

API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
    SYSTEM
    if (!(*sample = calloc(1, sizeof **sample)))
        return NO_MEMORY;
    if (writable)
        __atomic_add_fetch(&the_state()->gpm_samples, 1, __ATOMIC_SEQ_CST);
    return OK;
}

API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    SYSTEM
    if (!sample)
        return INVALID;
    free(sample);
    if (writable)
        __atomic_sub_fetch(&the_state()->gpm_samples, 1, __ATOMIC_SEQ_CST);
    return OK;
}

static int take_sample(struct card *card, int part, nvmlGpmSample_t sample)
{
    if (!sample)
        return INVALID;
    if (!NOW(card->gpm))
        return UNSUPPORTED;
    *sample = (struct nvmlGpmSample_st){.card = card, .part = part, .at = now_s()};
    return OK;
}

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    REACH
    return NOW(card->mig) == 1 ? UNSUPPORTED : take_sample(card, -1, sample);
}

API nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned instance, nvmlGpmSample_t sample)
{
    REACH
    if (NOW(card->mig) != 1 || instance < 7 || instance >= 7 + (unsigned)NOW(card->mig_count))
        return INVALID;
    return take_sample(card, (int)instance - 7, sample);
}

/* Two samples of one card, or of one instance, in the order of their time. Of an instance a metric is less by its
 * number, so that one can be told from another. */
API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    SYSTEM
    if (get->version != 1)
        return VERSION;
    if (!get->sample1 || !get->sample2 || !get->numMetrics || !get->sample1->card || get->sample1->card != get->sample2->card)
        return INVALID;
    if (get->sample1->part != get->sample2->part || get->sample1->at >= get->sample2->at)
        return INVALID;
    for (unsigned i = 0; i < get->numMetrics; i++) {
        nvmlGpmMetric_t *metric = &get->metrics[i];
        double value = metric->metricId < FAKE_GPM ? NOW(get->sample2->card->gpm_values[metric->metricId]) : -1;
        metric->nvmlReturn = value < 0 ? UNSUPPORTED : OK; /* not so of NaN */
        metric->value = value - (get->sample2->part > 0 ? get->sample2->part : 0);
    }
    return OK;
}
