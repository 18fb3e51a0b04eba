/* View: an index as a search needs it, see view.h; and what it finds, as Python objects. */
#include "base/shell.h"
#include "index/view.h"

#include "index/prompt.h"

/* The memory of the last search, for the next one; the one in use is no one else's meanwhile. */
static Drops spare;
static Cut spare_cut;

static Drops take_spare(void) {
    Drops taken = spare;
    memset(&spare, 0, sizeof spare);
    return taken;
}

static void put_spare(Drops *used) {
    drops_free(&spare);
    spare = *used;
}

/* The same of what cuts; `own` is where it is meanwhile. NULL where nothing is cut. */
static Cut *take_cut(const View *view, Cut *own) {
    if (!view->ends.rule_count) {
        return NULL;
    }
    *own = spare_cut;
    memset(&spare_cut, 0, sizeof spare_cut);
    own->count = 0;
    return own;
}

static void put_cut(Cut *used) {
    if (used != NULL) {
        cut_free(&spare_cut);
        spare_cut = *used;
    }
}

/* Return (depth, mask) of each drop. */
static PyObject *list_masks(const Drops *found) {
    PyObject *list = PyList_New(found->count);
    for (Py_ssize_t i = 0; list != NULL && i < found->count; i++) {
        const Drop *drop = found->drops + i;
        PyObject *mask = mask_int(drop->words, drop->size);
        PyObject *pair = mask == NULL ? NULL : Py_BuildValue("nN", drop->depth, mask);
        set_made(&list, i, pair);
    }
    return list;
}

PyObject *table_find_drops(Table *self, ARGUMENTS) {
    REFUSE_OR_NULL(nargs < 2 || nargs > 3, PyExc_TypeError,
                   "find_drops takes 2 or 3 arguments, not %zd", nargs);
    REFUSE_OR_NULL(nargs == 3 && args[2] != Py_None && !Py_IS_TYPE(args[2], &table_type),
                   PyExc_TypeError, "older is a Table or None");
    const Table *older = nargs == 3 && args[2] != Py_None ? (const Table *)args[2] : NULL;
    Mask live;
    TRY_OR_NULL(mask_read(args[1], &live));
    AskedPrompt asked;
    Drops found = take_spare();
    prompt_open(&asked, args[0]);
    int failed =
        table_search_prompt(self, older, &asked.prompt, live.words, live.size, &found) < 0;
    prompt_close(&asked);
    PyMem_Free(live.words);
    PyObject *list = failed ? NULL : list_masks(&found);
    put_spare(&found);
    return list;
}

/* Return the holding of each live slot's worker, None for others. */
static PyObject *list_holdings(const View *self, const Table *table) {
    Py_ssize_t count = PyTuple_GET_SIZE(self->names);
    PyObject *holdings = PyTuple_New(count);
    for (Py_ssize_t slot = 0; holdings != NULL && slot < count; slot++) {
        PyObject *held = NULL;
        uint32_t word = (uint32_t)(slot / 64);
        if (word < self->live_words && (self->live[word] >> (slot % 64) & 1)) {
            held = PyDict_GetItemWithError(table->holdings, PyTuple_GET_ITEM(self->names, slot));
        }
        if (held == NULL && PyErr_Occurred()) {
            Py_CLEAR(holdings);
        } else {
            int known = held != NULL && Py_IS_TYPE(held, &holding_type);
            PyTuple_SET_ITEM(holdings, slot, Py_NewRef(known ? held : Py_None));
        }
    }
    return holdings;
}

/* Read the live slots, which must all have names; -1 with an error set. */
static int read_live(View *self, PyObject *object) {
    Mask live;
    TRY(mask_read(object, &live));
    self->live = live.words;
    self->live_words = live.size;
    Py_ssize_t slots = PyTuple_GET_SIZE(self->names);
    int64_t highest = -1;
    if (live.size) {
        highest = (int64_t)live.size * 64 - 1 - __builtin_clzll(live.words[live.size - 1]);
    }
    REFUSE(highest >= (int64_t)slots, PyExc_ValueError,
           "slot %lld is live, but only %zd have names", (long long)highest, slots);
    return 0;
}

PyObject *table_view(Table *self, ARGUMENTS) {
    REFUSE_OR_NULL(nargs < 3 || nargs > 4, PyExc_TypeError, "view takes 3 or 4 arguments, not %zd",
                   nargs);
    REFUSE_OR_NULL(args[0] != Py_None && !Py_IS_TYPE(args[0], &table_type), PyExc_TypeError,
                   "older is a Table or None");
    View *view = (View *)view_type.tp_alloc(&view_type, 0);
    NEED_OR_NULL(view);
    view->young = (Table *)Py_NewRef(self);
    view->old = args[0] == Py_None ? NULL : (Table *)Py_NewRef(args[0]);
    view->names = PySequence_Tuple(args[1]);
    if (view->names == NULL || read_live(view, args[2]) < 0 ||
        (nargs == 4 && ends_read(&view->ends, args[3], view->live_words) < 0) ||
        (view->holdings = list_holdings(view, view->young)) == NULL ||
        (view->old != NULL && (view->aged = list_holdings(view, view->old)) == NULL)) {
        Py_CLEAR(view);
    }
    return (PyObject *)view;
}

static int view_traverse(View *self, visitproc visit, void *arg) {
    VISIT_ALL(self->young, self->old, self->names, self->holdings, self->aged);
    return ends_traverse(&self->ends, visit, arg);
}

static void view_dealloc(View *self) {
    PyObject_GC_UnTrack(self);
    XDECREF_ALL(self->young, self->old, self->names, self->holdings, self->aged);
    PyMem_Free(self->live);
    ends_clear(&self->ends);
    Py_TYPE(self)->tp_free(self);
}

/* Find the drops of a prompt, cut to where hits end; `cut`, unless NULL, has the grouped workers among
 * them. -1 with an error set.
 */
static int find(const View *self, PyObject *hashes, Drops *found, Cut *cut) {
    AskedPrompt asked;
    prompt_open(&asked, hashes);
    int failed = table_search_prompt(self->young, self->old, &asked.prompt, self->live,
                                     self->live_words, found);
    if (!failed && cut != NULL && found->count) {
        failed = (ends_have_lookahead(&self->ends) && prompt_ask_ids(&asked) < 0) ||
                 ends_cut(&self->ends, &asked.prompt, self->live_words, found, cut) < 0;
    }
    prompt_close(&asked);
    return failed ? -1 : 0;
}

/* Have the processor fetch the names of a drop's workers, which will all be hashed; return how many. */
static Py_ssize_t drop_fetch(const Drop *drop, PyObject *const *names) {
    Py_ssize_t count = 0;
    for (uint32_t word = drop->start; word < drop->size; word++) {
        for (uint64_t bits = drop->words[word]; bits; bits &= bits - 1, count++) {
            __builtin_prefetch(names[word * 64 + (uint32_t)__builtin_ctzll(bits)], 1);
        }
    }
    return count;
}

/* Give every worker of a drop its depth; -1 with an error set. */
static int put_drop(const View *self, const Drop *drop, PyObject *matches) {
    drop_fetch(drop, ((PyTupleObject *)self->names)->ob_item);
    PyObject *depth = PyLong_FromSsize_t(drop->depth);
    int failed = depth == NULL;
    for (uint32_t word = drop->start; word < drop->size && !failed; word++) {
        for (uint64_t bits = drop->words[word]; bits && !failed; bits &= bits - 1) {
            uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
            failed = PyDict_SetItem(matches, view_name(self, slot), depth) < 0;
        }
    }
    Py_XDECREF(depth);
    return failed ? -1 : 0;
}

static PyObject *view_find_matches(View *self, PyObject *hashes) {
    Drops found = take_spare();
    Cut own, *cut = take_cut(self, &own);
    PyObject *matches = find(self, hashes, &found, cut) < 0 ? NULL : PyDict_New();
    /* The shallowest first, then from the deepest on. */
    for (Py_ssize_t i = 0; matches != NULL && i < found.count; i++) {
        if (put_drop(self, found.drops + (i ? i - 1 : found.count - 1), matches) < 0) {
            Py_CLEAR(matches);
        }
    }
    put_cut(cut);
    put_spare(&found);
    return matches;
}

static PyObject *drop_group(const Drop *drop, PyObject ***names) {
    PyObject *workers = PyTuple_New(drop_fetch(drop, *names));
    Py_ssize_t at = 0;
    for (uint32_t word = drop->start; workers != NULL && word < drop->size; word++) {
        for (uint64_t bits = drop->words[word]; bits; bits &= bits - 1) {
            PyObject *name = (*names)[word * 64 + (uint32_t)__builtin_ctzll(bits)];
            PyTuple_SET_ITEM(workers, at++, Py_NewRef(name));
        }
    }
    return workers == NULL ? NULL : Py_BuildValue("nN", drop->depth, workers);
}

PyObject *drops_groups(const Drops *found, PyObject ***names) {
    PyObject *groups = PyList_New(found->count);
    for (Py_ssize_t i = 0; groups != NULL && i < found->count; i++) {
        PyObject *group = drop_group(found->drops + i, names);
        set_made(&groups, i, group);
    }
    return groups;
}

static PyObject *view_find_groups(View *self, PyObject *hashes) {
    Drops found = take_spare();
    PyObject **names = ((PyTupleObject *)self->names)->ob_item;
    Cut own, *cut = take_cut(self, &own);
    PyObject *groups = find(self, hashes, &found, cut) < 0 ? NULL : drops_groups(&found, &names);
    put_cut(cut);
    put_spare(&found);
    return groups;
}

/* Return how many blocks those hold whose hit is shorter than that, by worker. */
static PyObject *list_chains(const View *self, const Cut *cut) {
    PyObject *chains = PyDict_New();
    for (Py_ssize_t i = 0; chains != NULL && cut != NULL && i < cut->count; i++) {
        const Hit *one = cut->hits + i;
        PyObject *depth = one->hit < one->depth ? PyLong_FromSsize_t(one->depth) : Py_NewRef(Py_None);
        if (depth == NULL ||
            (depth != Py_None && PyDict_SetItem(chains, view_name(self, one->slot), depth) < 0)) {
            Py_CLEAR(chains);
        }
        Py_XDECREF(depth);
    }
    return chains;
}

static PyObject *view_find_hits(View *self, PyObject *hashes) {
    Drops found = take_spare();
    PyObject **names = ((PyTupleObject *)self->names)->ob_item;
    Cut own, *cut = take_cut(self, &own);
    PyObject *groups = find(self, hashes, &found, cut) < 0 ? NULL : drops_groups(&found, &names);
    PyObject *chains = groups == NULL ? NULL : list_chains(self, cut);
    put_cut(cut);
    put_spare(&found);
    if (chains == NULL) {
        Py_XDECREF(groups);
        return NULL;
    }
    return Py_BuildValue("NN", groups, chains);
}

static PyObject *view_sizes(View *self, PyObject *Py_UNUSED(nothing)) {
    Py_ssize_t count = PyTuple_GET_SIZE(self->names);
    PyObject *sizes = PyList_New(count);
    for (Py_ssize_t slot = 0; sizes != NULL && slot < count; slot++) {
        PyObject *blocks = PyLong_FromLongLong(view_blocks(self, (uint32_t)slot));
        set_made(&sizes, slot, blocks);
    }
    return sizes;
}

GETTER(View, view_live, mask_int(self->live, self->live_words))

MEMBERS(members,
    FIELDS(View, T_OBJECT_EX, READONLY, young, names)
    FIELDS(View, T_OBJECT, READONLY, old))

GETTERS(getters, {"live", (getter)view_live, NULL, "The mask of the slots that count.", NULL})

METHODS(methods,
    METHOD_O("find_matches", view_find_matches),
    METHOD_O("find_groups", view_find_groups),
    METHOD_O("find_hits", view_find_hits),
    METHOD_NOARGS("sizes", view_sizes))

PyTypeObject view_type = {
    SLOTS("View", sizeof(View), Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION),
    .tp_dealloc = (destructor)view_dealloc,
    .tp_traverse = (traverseproc)view_traverse,
    .tp_members = members, .tp_getset = getters, .tp_methods = methods,
};
