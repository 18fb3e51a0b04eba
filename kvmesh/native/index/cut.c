/* Where hits of workers with several cache groups end, see cut.h. */
#include "base/arrays.h"
#include "index/cut.h"

#include <stdlib.h>

#include "base/xxh3.h"

#define MOST_LOOKAHEAD 64
#define MOST_DROP 8

/* Read one rule; -1 with an error set. */
static int read_rule(Rule *rule, PyObject *given) {
    REFUSE(!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 3, PyExc_TypeError,
           "a rule is (lookahead, drop, mask)");
    long lookahead = PyLong_AsLong(PyTuple_GET_ITEM(given, 0));
    long drop = PyErr_Occurred() ? -1 : PyLong_AsLong(PyTuple_GET_ITEM(given, 1));
    TRY(no_error());
    REFUSE(lookahead < 0 || lookahead > MOST_LOOKAHEAD || drop < 0 || drop > MOST_DROP,
           PyExc_ValueError, "a rule looks ahead at 0 to %d tokens and drops 0 to %d blocks",
           MOST_LOOKAHEAD, MOST_DROP);
    rule->lookahead = (uint32_t)lookahead;
    rule->drop = (uint32_t)drop;
    return mask_read(PyTuple_GET_ITEM(given, 2), &rule->members);
}

/* Take a table or None; -1 with TypeError set. */
static int read_table(Table **table, PyObject *given) {
    REFUSE(given != Py_None && !Py_IS_TYPE(given, &table_type), PyExc_TypeError,
           "ends are in a Table, or None");
    *table = given == Py_None ? NULL : (Table *)Py_NewRef(given);
    return 0;
}

static int read_rules(Ends *self, PyObject *rules, uint32_t live_words) {
    Py_ssize_t count = PyTuple_GET_SIZE(rules);
    self->rules = PyMem_Calloc((size_t)count + 1, sizeof *self->rules);
    self->grouped = PyMem_Calloc((size_t)live_words + 1, sizeof *self->grouped);
    NEED_MEMORY(self->rules);
    NEED_MEMORY(self->grouped);
    for (Py_ssize_t i = 0; i < count; i++) {
        Rule *rule = self->rules + i;
        self->rule_count = (uint32_t)i + 1;
        TRY(read_rule(rule, PyTuple_GET_ITEM(rules, i)));
        REFUSE(masks_meet(self->grouped, live_words, &rule->members), PyExc_ValueError,
               "a worker has two rules");
        for (uint32_t word = 0; word < live_words && word < rule->members.size; word++) {
            self->grouped[word] |= rule->members.words[word];
        }
    }
    return 0;
}

int ends_read(Ends *self, PyObject *given, uint32_t live_words) {
    if (given == Py_None) {
        return 0;
    }
    REFUSE(!PyTuple_Check(given) || PyTuple_GET_SIZE(given) != 3 ||
           !PyTuple_Check(PyTuple_GET_ITEM(given, 2)), PyExc_TypeError,
           "ends are (young, old, rules) or None");
    TRY(read_table(&self->young, PyTuple_GET_ITEM(given, 0)));
    TRY(read_table(&self->old, PyTuple_GET_ITEM(given, 1)));
    return read_rules(self, PyTuple_GET_ITEM(given, 2), live_words);
}

int ends_traverse(const Ends *self, visitproc visit, void *arg) {
    VISIT_ALL(self->young, self->old);
    return 0;
}

void ends_clear(Ends *self) {
    for (uint32_t i = 0; i < self->rule_count; i++) {
        PyMem_Free(self->rules[i].members.words);
    }
    FREE_ALL(self->rules, self->grouped);
    XDECREF_ALL(self->young, self->old);
    memset(self, 0, sizeof *self);
}

int ends_have_lookahead(const Ends *self) {
    for (uint32_t i = 0; i < self->rule_count; i++) {
        if (self->rules[i].lookahead) {
            return 1;
        }
    }
    return 0;
}

void cut_free(Cut *self) {
    FREE_ALL(self->hits, self->waiting, self->chains);
    drops_free(&self->drops);
    memset(self, 0, sizeof *self);
}

static int any_grouped(const Ends *self, const Drops *found) {
    for (Py_ssize_t i = 0; i < found->count; i++) {
        const Drop *drop = found->drops + i;
        for (uint32_t word = drop->start; word < drop->size; word++) {
            if (drop->words[word] & self->grouped[word]) {
                return 1;
            }
        }
    }
    return 0;
}

/* Make room for so many workers; -1 with MemoryError set. */
static int make_room(Cut *cut, uint32_t words) {
    cut->count = 0;
    if (words <= cut->words) {
        return 0;
    }
    TRY(RESIZE(cut->waiting, words));
    TRY(RESIZE(cut->chains, words * 64));
    TRY(RESIZE(cut->hits, words * 64));
    cut->words = words;
    cut->room = (Py_ssize_t)words * 64;
    return 0;
}

/* One rule's walk from the deepest of its workers towards the root. */
typedef struct {
    const Ends *ends;
    const Rule *rule;
    const Prompt *prompt;
    const Drops *found;
    Cut *cut;
    uint32_t words;
    Py_ssize_t next; /* the next drop to look at */
    Py_ssize_t left; /* workers that wait for an end */
} Walk;

/* Let the workers of a drop wait. */
static void enter(Walk *self, const Drop *drop) {
    const Mask *members = &self->rule->members;
    for (uint32_t word = drop->start; word < drop->size && word < members->size; word++) {
        uint64_t own = drop->words[word] & members->words[word];
        self->cut->waiting[word] |= own;
        for (; own; own &= own - 1) {
            self->cut->chains[word * 64 + (uint32_t)__builtin_ctzll(own)] = drop->depth;
            self->left++;
        }
    }
}

/* Take the drops that begin here in; return where to look, 0 at the end. */
static Py_ssize_t advance(Walk *self, Py_ssize_t place) {
    while (self->next < self->found->count &&
           (!self->left || self->found->drops[self->next].depth >= place)) {
        const Drop *drop = self->found->drops + self->next++;
        enter(self, drop);
        place = drop->depth;
    }
    return self->left ? place : 0;
}

/* End the wait of one worker. */
static void settle(Walk *self, uint32_t slot, Py_ssize_t place) {
    Cut *cut = self->cut;
    Py_ssize_t hit = place - (Py_ssize_t)self->rule->drop;
    cut->waiting[slot / 64] &= ~(1ULL << (slot % 64));
    cut->hits[cut->count++] = (Hit){hit > 0 ? hit : 0, cut->chains[slot], slot};
    self->left--;
}

/* Return one word of who has an end at a block. */
static uint64_t ended_word(const Table *table, const Entry *entry, uint32_t word) {
    if (entry == NULL) {
        return 0;
    }
    const Set *set = table->sets.sets + entry->set;
    return word < set->size ? set->words[word] : 0;
}

static const Entry *find_end(const Table *table, uint64_t key) {
    return table == NULL ? NULL : shard_find(table->shards + (key & 255), key, mixed(key));
}

/* Settle all who have an end of this key. */
static void settle_ended(Walk *self, Py_ssize_t place, uint64_t key) {
    const Ends *ends = self->ends;
    const Entry *young = find_end(ends->young, key), *old = find_end(ends->old, key);
    if (young == NULL && old == NULL) {
        return;
    }
    for (uint32_t word = 0; word < self->words; word++) {
        uint64_t here = self->cut->waiting[word] &
                        (ended_word(ends->young, young, word) | ended_word(ends->old, old, word));
        for (; here; here &= here - 1) {
            settle(self, word * 64 + (uint32_t)__builtin_ctzll(here), place);
        }
    }
}

/* Settle all who hold the block behind: it tells that the tokens fit, where they are not known. */
static void settle_followed(Walk *self, Py_ssize_t place) {
    for (uint32_t word = 0; word < self->words; word++) {
        for (uint64_t here = self->cut->waiting[word]; here; here &= here - 1) {
            uint32_t slot = word * 64 + (uint32_t)__builtin_ctzll(here);
            if (self->cut->chains[slot] > place) {
                settle(self, slot, place);
            }
        }
    }
}

/* Settle those whose hits can end behind the first `place` blocks. */
static void check(Walk *self, Py_ssize_t place) {
    const Prompt *prompt = self->prompt;
    uint64_t key = prompt->known[place - 1];
    Py_ssize_t ahead = (Py_ssize_t)self->rule->lookahead;
    if (ahead) {
        if (prompt->ids == NULL) {
            settle_followed(self, place);
            return;
        }
        Py_ssize_t first = place * prompt->block_size;
        if (first > prompt->id_count - ahead) {
            return;
        }
        uint64_t digest = xxh3_64(prompt->ids + first * 4, (size_t)ahead * 4, 0);
        digest = digest ? digest : 1;
        key = xxh3_64(&digest, sizeof digest, key);
    }
    settle_ended(self, place, key);
}

static void walk(Walk *self) {
    Py_ssize_t place = 0;
    memset(self->cut->waiting, 0, self->words * sizeof *self->cut->waiting);
    while ((place = advance(self, place)) > 0) {
        check(self, place);
        if (self->left && --place == 0) {
            break;
        }
    }
    for (uint32_t word = 0; word < self->words; word++) {
        for (uint64_t here = self->cut->waiting[word]; here; here &= here - 1) {
            settle(self, word * 64 + (uint32_t)__builtin_ctzll(here), 0);
        }
    }
}

static int compare_hits(const void *a, const void *b) {
    const Hit *left = a, *right = b;
    if (left->hit != right->hit) {
        return left->hit < right->hit ? 1 : -1;
    }
    return left->slot < right->slot ? -1 : 1;
}

/* Make room for the drops of a cut; -1 with MemoryError set. */
static int make_drops(Drops *made, Py_ssize_t count, uint32_t words) {
    size_t wanted = (size_t)count * words;
    made->count = 0;
    made->word_count = 0;
    if (count > made->room) {
        TRY(RESIZE(made->drops, count));
        made->room = count;
    }
    if (wanted > made->word_room) {
        TRY(RESIZE(made->words, wanted));
        made->word_room = wanted;
    }
    return 0;
}

/* Close the drop of `words` words that stands behind the others, unless it is empty. */
static void push_drop(Drops *made, Py_ssize_t depth, uint32_t words) {
    uint64_t *own = made->words + made->word_count;
    uint32_t start = 0, size = words;
    while (size && !own[size - 1]) {
        size--;
    }
    while (start < size && !own[start]) {
        start++;
    }
    if (size) {
        made->drops[made->count++] = (Drop){depth, own, start, size};
        made->word_count += words;
    }
}

/* Put what is left of the drops and the hits together, deepest first. */
static void merge(const Ends *self, const Drops *found, const Cut *cut, uint32_t words,
                  Drops *made) {
    Py_ssize_t drop = 0, hit = 0;
    while (drop < found->count || (hit < cut->count && cut->hits[hit].hit)) {
        Py_ssize_t of_drop = drop < found->count ? found->drops[drop].depth : 0;
        Py_ssize_t of_hit = hit < cut->count ? cut->hits[hit].hit : 0;
        Py_ssize_t depth = of_drop > of_hit ? of_drop : of_hit;
        uint64_t *own = made->words + made->word_count;
        memset(own, 0, words * sizeof *own);
        if (of_drop == depth) {
            const Drop *plain = found->drops + drop++;
            for (uint32_t word = plain->start; word < plain->size; word++) {
                own[word] = plain->words[word] & ~self->grouped[word];
            }
        }
        for (; hit < cut->count && cut->hits[hit].hit == depth; hit++) {
            own[cut->hits[hit].slot / 64] |= 1ULL << (cut->hits[hit].slot % 64);
        }
        push_drop(made, depth, words);
    }
}

/* Give `found` the drops of `made`, and that the memory of those it had. */
static void exchange(Drops *found, Drops *made) {
    Drops before = *found;
    found->drops = made->drops;
    found->count = made->count;
    found->room = made->room;
    found->words = made->words;
    found->word_count = made->word_count;
    found->word_room = made->word_room;
    made->drops = before.drops;
    made->room = before.room;
    made->words = before.words;
    made->word_room = before.word_room;
}

int ends_cut(const Ends *self, const Prompt *prompt, uint32_t live_words, Drops *found, Cut *cut) {
    cut->count = 0;
    if (!self->rule_count || !any_grouped(self, found)) {
        return 0;
    }
    REFUSE(found->drops[0].depth > prompt->count, PyExc_ValueError,
           "a prompt lost blocks while it was searched");
    TRY(make_room(cut, live_words));
    for (uint32_t i = 0; i < self->rule_count; i++) {
        Walk one = {.ends = self, .rule = self->rules + i, .prompt = prompt, .found = found,
                    .cut = cut, .words = live_words};
        walk(&one);
    }
    if (self->rule_count > 1) {
        /* The hits of one rule are found in this order. */
        qsort(cut->hits, (size_t)cut->count, sizeof *cut->hits, compare_hits);
    }
    TRY(make_drops(&cut->drops, found->count + cut->count, live_words));
    merge(self, found, cut, live_words, &cut->drops);
    exchange(found, &cut->drops);
    return 0;
}
