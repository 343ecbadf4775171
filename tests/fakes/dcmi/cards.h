/* Which chips there are, what they are, and how they are joined. */

API int dcmi_get_card_list(int *count, int *list, int room)
{
    int code = enter(__func__, 1, NULL), found = 0;
    struct state *state = the_state();
    if (code)
        return code;
    if (!count || !list || room <= 0)
        return PARAMETER;
    for (int i = 0; i < NOW(state->card_count); i++) {
        struct card *card = &state->cards[i];
        bool known = !NOW(card->present);
        for (int j = 0; j < found; j++)
            known |= list[j] == NOW(card->board);
        if (!known && found < room)
            list[found++] = NOW(card->board);
    }
    *count = found;
    return OK;
}

static int chips_of(int board)
{
    int chips = 0;
    while (by_pair(board, chips))
        chips++;
    return chips;
}

API int dcmi_get_device_num_in_card(int board, int *count)
{
    int code = enter(__func__, 1, NULL);
    if (code)
        return code;
    return (*count = chips_of(board)) ? OK : BAD_ID;
}

API int dcmi_get_device_id_in_card(int board, int *chips, int *mcu, int *cpu)
{
    int code = enter(__func__, 1, NULL);
    if (code)
        return code;
    *chips = chips_of(board);
    *mcu = *chips;
    *cpu = -1;
    return *chips ? OK : BAD_ID;
}

API int dcmi_get_netdev_brother_device(int board, int chip, int *brother)
{
    struct card *card = by_pair(board, chip);
    int code = enter(__func__, 1, card);
    if (code || !card)
        return code ? code : BAD_ID;
    *brother = NOW(card->brother);
    return *brother < -1 ? UNSUPPORTED : OK;
}

API int dcmi_get_device_logic_id(int *logic, int board, int chip)
{
    struct card *card = by_pair(board, chip);
    int code = enter(__func__, 1, card);
    if (code || !card)
        return code ? code : BAD_ID;
    *logic = logic_of(card);
    return OK;
}

API int dcmi_get_device_phyid_from_logicid(unsigned logic, unsigned *number)
{
    struct card *card = by_logic((int)logic);
    int code = enter(__func__, 1, card);
    if (code || !card)
        return code ? code : BAD_ID;
    *number = (unsigned)NOW(card->minor);
    return OK;
}

API int dcmi_get_device_logicid_from_phyid(unsigned number, unsigned *logic)
{
    struct card *card = NULL;
    struct state *state = the_state();
    for (int i = 0; state && i < NOW(state->card_count); i++)
        if (NOW(state->cards[i].present) && NOW(state->cards[i].minor) == (int)number)
            card = &state->cards[i];
    int code = enter(__func__, 1, card);
    if (code || !card)
        return code ? code : BAD_ID;
    *logic = (unsigned)logic_of(card);
    return OK;
}

API int dcmi_get_card_id_device_id_from_logicid(int *board, int *chip, unsigned logic)
{
    struct card *card = by_logic((int)logic);
    int code = enter(__func__, 1, card);
    if (code || !card)
        return code ? code : BAD_ID;
    *board = NOW(card->board);
    *chip = NOW(card->chip);
    return OK;
}

API int dcmiv2_get_device_list(int *list, int *count, int room)
{
    int code = enter(__func__, 2, NULL);
    if (code)
        return code;
    for (*count = 0; *count < room && by_logic(*count); ++*count)
        list[*count] = *count;
    return OK;
}

API int dcmiv2_get_chip_phy_id_by_dev_id(int logic, unsigned *number)
{
    struct card *card = by_logic(logic);
    int code = enter(__func__, 2, card);
    if (code || !card)
        return code ? code : BAD_ID;
    *number = (unsigned)NOW(card->minor);
    return OK;
}

/* 0: a chip, 1: the management one, which is behind the chips of a board. */
API int dcmi_get_device_type(int board, int chip, int *type)
{
    struct card *card = by_pair(board, chip);
    int code = enter(__func__, 1, card), chips = chips_of(board);
    if (code || !chips || chip > chips)
        return code ? code : BAD_ID;
    *type = card ? 0 : 1;
    return OK;
}

API int dcmiv2_get_device_type(int logic, int *type)
{
    struct card *card = by_logic(logic);
    int code = enter(__func__, 2, card);
    if (code || !card)
        return code ? code : BAD_ID;
    *type = 0;
    return OK;
}

struct chip_info {
    unsigned char type[32], name[32], version[32];
    unsigned aicores;
    unsigned char npu_name[32];
};
BOTH(dcmi_get_device_chip_info_v2, dcmiv2_get_device_chip_info, (struct chip_info *info), {
    memset(info, 0, sizeof *info);
    /* "Ascend910B3" is the type "Ascend" and the name "910B3". */
    const char *name = strncmp(card->model, "Ascend", 6) ? card->model : card->model + 6;
    give_text((char *)info->type, sizeof info->type, "Ascend");
    give_text((char *)info->name, sizeof info->name, name);
    give_text((char *)info->version, sizeof info->version, "V1");
    give_text((char *)info->npu_name, sizeof info->npu_name, card->model);
    info->aicores = 20;
    return OK;
})

struct pcie_info {
    unsigned vendor, subvendor, device_id, subdevice;
    int domain;
    unsigned bus, device, function;
    unsigned char reserved[32];
};
BOTH(dcmi_get_device_pcie_info_v2, dcmiv2_get_device_pcie_info, (struct pcie_info *info), {
    memset(info, 0, sizeof *info);
    info->vendor = info->subvendor = 0x19e5;
    info->device_id = 0xd802;
    unsigned domain = 0;
    sscanf(card->bus_id, "%x:%x:%x.%x", &domain, &info->bus, &info->device, &info->function);
    info->domain = (int)domain;
    return OK;
})

struct die {
    unsigned words[5];
};
BOTH(dcmi_get_device_die_v2, dcmiv2_get_device_die_id, (int type, struct die *die), {
    if (type < 0 || type > 2)
        return PARAMETER;
    if (type != 1)
        return UNSUPPORTED;
    for (int i = 0; i < 5; i++)
        die->words[i] = NOW(card->die[i]);
    return OK;
})

struct elabel {
    char product[256], model[256], maker[256], date[256], serial[256];
};

static void fill_elabel(struct elabel *label, struct card *card)
{
    memset(label, 0, sizeof *label);
    give_text(label->product, sizeof label->product, card->model);
    give_text(label->model, sizeof label->model, "NA");
    give_text(label->maker, sizeof label->maker, "Huawei");
    give_text(label->date, sizeof label->date, "2024-01-01");
    give_text(label->serial, sizeof label->serial, card->serial[0] ? card->serial : "NA");
}

API int dcmi_get_card_elabel_v2(int board, struct elabel *label)
{
    struct card *card = by_pair(board, 0);
    int code = enter(__func__, 1, card);
    if (code || !card)
        return code ? code : BAD_ID;
    fill_elabel(label, card);
    return OK;
}

API int dcmiv2_get_device_elabel_info(int logic, struct elabel *label)
{
    struct card *card = by_logic(logic);
    int code = enter(__func__, 2, card);
    if (code || !card)
        return code ? code : BAD_ID;
    fill_elabel(label, card);
    return OK;
}

/* "0-23,48-71"; `length` is what there is room for, then what there is. */
static int cpu_list(struct card *card, char *into, int *length)
{
    int used = 0, first = -1;
    char list[1024] = "";
    for (int cpu = 0; cpu <= FAKE_CPU_WORDS * 64; cpu++) {
        bool in = cpu < FAKE_CPU_WORDS * 64 && NOW(card->cpu_mask[cpu / 64]) >> (cpu % 64) & 1;
        if (in && first < 0)
            first = cpu;
        if (!in && first >= 0) {
            used += snprintf(list + used, sizeof list - (size_t)used, first == cpu - 1 ? "%s%d" : "%s%d-%d",
                             used ? "," : "", first, cpu - 1);
            first = -1;
            if (used >= (int)sizeof list)
                return INTERNAL;
        }
    }
    if (!into || !length)
        return PARAMETER;
    strcpy(into, list);
    *length = used;
    return OK;
}
BOTH(dcmi_get_affinity_cpu_info_by_device_id, dcmiv2_get_affinity_cpu_info_by_dev_id, (char *cpus, int *length),
     { return cpu_list(card, cpus, length); })

/* 0 itself, 1 over the processors, 3 HCCS, 6 the other die of a package, 7 HCCS with switches. */
static int between(struct card *one, struct card *other)
{
    int place = (int)(other - the_state()->cards);
    if (one == other)
        return 0;
    if (NOW(one->board) == NOW(other->board))
        return 6;
    for (int i = 0; i < NOW(one->link_count) && i < FAKE_LINKS; i++)
        if (NOW(one->link_up) >> i & 1) {
            if (NOW(one->link_end[i]) == place)
                return 3;
            if (NOW(one->link_end[i]) >= FAKE_SWITCH)
                return 7;
        }
    return 1;
}

API int dcmi_get_topo_info_by_device_id(int board, int chip, int other_board, int other_chip, int *topology)
{
    struct card *card = by_pair(board, chip), *other = by_pair(other_board, other_chip);
    int code = enter(__func__, 1, card);
    if (code || !card || !other)
        return code ? code : BAD_ID;
    *topology = between(card, other);
    return OK;
}

API int dcmiv2_get_topo_info_by_device_id(int logic, int other_logic, int *topology)
{
    struct card *card = by_logic(logic), *other = by_logic(other_logic);
    int code = enter(__func__, 2, card);
    if (code || !card || !other)
        return code ? code : BAD_ID;
    *topology = between(card, other);
    return OK;
}
