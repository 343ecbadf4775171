/* GPM: samples, and what two of them say of the time between. As the library does, only the metrics that are asked for
 * are written to, by the number of the caller. */

struct gpm_sample {
    struct card *card;
    int part;
    double at;
};
struct gpm_metric {
    unsigned id, code;
    double value;
    const char *names[3];
};
struct gpm_get {
    unsigned version, count;
    struct gpm_sample *before, *now;
    struct gpm_metric metrics[];
};
struct gpm_support {
    unsigned version, supported;
};

API int nvmlGpmQueryDeviceSupport(struct device *device, struct gpm_support *support)
{
    REACH
    if (support->version != 1)
        return VERSION;
    support->supported = NOW(card->gpm) != 0;
    return OK;
}

API int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    SYSTEM
    if (!(*sample = calloc(1, sizeof **sample)))
        return NO_MEMORY;
    if (writable)
        __atomic_add_fetch(&the_state()->gpm_samples, 1, __ATOMIC_SEQ_CST);
    return OK;
}

API int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    SYSTEM
    if (!sample)
        return INVALID;
    free(sample);
    if (writable)
        __atomic_sub_fetch(&the_state()->gpm_samples, 1, __ATOMIC_SEQ_CST);
    return OK;
}

static int take_sample(struct card *card, int part, struct gpm_sample *sample)
{
    if (!sample)
        return INVALID;
    if (!NOW(card->gpm))
        return UNSUPPORTED;
    *sample = (struct gpm_sample){.card = card, .part = part, .at = now_s()};
    return OK;
}

API int nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample)
{
    REACH
    return NOW(card->mig) == 1 ? UNSUPPORTED : take_sample(card, -1, sample);
}

API int nvmlGpmMigSampleGet(struct device *device, unsigned instance, struct gpm_sample *sample)
{
    REACH
    if (NOW(card->mig) != 1 || instance < 7 || instance >= 7 + (unsigned)NOW(card->mig_count))
        return INVALID;
    return take_sample(card, (int)instance - 7, sample);
}

/* Two samples of one card, or of one instance, in the order of their time. Of an instance a metric is less by its
 * number, so that one can be told from another. */
API int nvmlGpmMetricsGet(struct gpm_get *get)
{
    SYSTEM
    if (get->version != 1)
        return VERSION;
    if (!get->before || !get->now || !get->count || !get->before->card || get->before->card != get->now->card)
        return INVALID;
    if (get->before->part != get->now->part || get->before->at >= get->now->at)
        return INVALID;
    for (unsigned i = 0; i < get->count; i++) {
        struct gpm_metric *metric = &get->metrics[i];
        double value = metric->id < FAKE_GPM ? NOW(get->now->card->gpm_values[metric->id]) : -1;
        metric->code = value < 0 ? UNSUPPORTED : OK; /* not so of NaN */
        metric->value = value - (get->now->part > 0 ? get->now->part : 0);
    }
    return OK;
}
