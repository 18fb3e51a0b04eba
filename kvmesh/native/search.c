/* Where along a prompt workers drop out: what `kvmesh.core.index.search.find_drops` does.
 *
 * The look-ups are the same ones in the same order, so that answers are equal even where a worker's
 * stream broke its promise. Each is a cache miss of 0.3 us in a large table: those that
 * three halvings may need are fetched at once.
 */
#include "table.h"

#define AHEAD 64
#define STACK_WORDS 32
#define NOBODY UINT32_MAX

static PyObject *upto_name; /* the name of the method asked for hashes */

/* Who holds a block: a set of each table, NO_SET for none in one; NOBODY, NOBODY: not there. */
typedef struct {
    uint32_t newer, older;
} Holders;

typedef struct {
    Py_ssize_t at;
    Holders holders;
} Post;

typedef struct {
    const Table *newer, *older; /* older may be NULL */
    uint64_t changes;           /* of both, when the search began */
    PyObject *hashes;
    Py_buffer known; /* of the hashes known so far, released before more are asked for */
    const uint64_t *blocks;
    Py_ssize_t count;
    Mask live;
    uint64_t *seen;
    PyObject *drops;
    Post *posts;
    Py_ssize_t post_count, post_room;
} Search;

static uint32_t find_set(const Table *table, uint64_t block) {
    const Shard *shard = table->shards + (block & 255);
    uint32_t at = shard_find(shard, block);
    return at == NOWHERE ? NO_SET : shard->entries[at].set;
}

static Holders look_up(const Search *self, Py_ssize_t at) {
    uint64_t block = self->blocks[at];
    uint32_t newer = find_set(self->newer, block);
    uint32_t older = self->older == NULL ? NO_SET : find_set(self->older, block);
    if (newer != NO_SET || older != NO_SET) {
        return (Holders){newer, older};
    }
    return (Holders){NOBODY, NOBODY};
}

static void fetch(const Search *self, Py_ssize_t at) {
    uint64_t block = self->blocks[at];
    shard_prefetch(self->newer->shards + (block & 255), block);
    if (self->older != NULL) {
        shard_prefetch(self->older->shards + (block & 255), block);
    }
}

/* The same for all that three halvings may look at. */
static void fetch_between(const Search *self, Py_ssize_t low, Py_ssize_t high) {
    Py_ssize_t middle = (low + high) >> 1, left = (low + middle) >> 1, right = (middle + high) >> 1;
    Py_ssize_t places[] = {middle, left, right, (low + left) >> 1, (left + middle) >> 1,
                           (middle + right) >> 1, (right + high) >> 1};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        fetch(self, places[i]);
    }
}

/* Return one word of the mask that holders stand for. */
static inline uint64_t word_of(const Search *self, Holders who, uint32_t word) {
    uint64_t bits = 0;
    if (who.newer != NOBODY) {
        const Set *set = self->newer->sets.sets + who.newer;
        bits = word < set->size ? set->words[word] : 0;
        if (self->older != NULL) {
            set = self->older->sets.sets + who.older;
            bits |= word < set->size ? set->words[word] : 0;
        }
    }
    return bits;
}

static uint32_t words_in(const Search *self, Holders who) {
    if (who.newer == NOBODY) {
        return 0;
    }
    uint32_t newer = self->newer->sets.sets[who.newer].size;
    uint32_t older = self->older == NULL ? 0 : self->older->sets.sets[who.older].size;
    return newer > older ? newer : older;
}

static int same(const Search *self, Holders a, Holders b) {
    if (a.newer == b.newer && a.older == b.older) {
        return 1;
    }
    if (self->older == NULL || a.newer == NOBODY || b.newer == NOBODY) {
        return 0;
    }
    uint32_t size = words_in(self, a);
    if (size != words_in(self, b)) {
        return 0;
    }
    for (uint32_t word = 0; word < size; word++) {
        if (word_of(self, a, word) != word_of(self, b, word)) {
            return 0;
        }
    }
    return 1;
}

static int any_live(const Search *self, Holders who) {
    uint32_t size = words_in(self, who);
    for (uint32_t word = 0; word < size && word < self->live.size; word++) {
        if (word_of(self, who, word) & self->live.words[word]) {
            return 1;
        }
    }
    return 0;
}

static int push(Search *self, Py_ssize_t at, Holders holders) {
    if (self->post_count == self->post_room) {
        Py_ssize_t room = self->post_room ? self->post_room * 2 : 64;
        Post *grown = PyMem_Realloc(self->posts, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->posts = grown;
        self->post_room = room;
    }
    self->posts[self->post_count++] = (Post){at, holders};
    return 0;
}

/* Whatever may run someone else's code may change the tables: then the posts mean nothing. */
static int check_unchanged(const Search *self) {
    if (self->newer->changes + (self->older ? self->older->changes : 0) != self->changes) {
        PyErr_SetString(PyExc_RuntimeError, "a table changed while it was searched");
        return -1;
    }
    return 0;
}

static void let_go(Search *self) {
    if (self->known.obj != NULL) {
        PyBuffer_Release(&self->known);
    }
    self->blocks = NULL;
    self->count = 0;
}

/* Let the prompt be hashed up to so many blocks. -1 with an error set. */
static int ask(Search *self, Py_ssize_t count) {
    let_go(self);
    PyObject *wanted = PyLong_FromSsize_t(count);
    PyObject *blocks =
        wanted == NULL ? NULL : PyObject_CallMethodOneArg(self->hashes, upto_name, wanted);
    Py_XDECREF(wanted);
    if (blocks == NULL) {
        return -1;
    }
    int failed = PyObject_GetBuffer(blocks, &self->known, PyBUF_FORMAT | PyBUF_ND) < 0;
    Py_DECREF(blocks);
    if (failed) {
        return -1;
    }
    const char *format = self->known.format;
    if (self->known.itemsize != sizeof *self->blocks || format == NULL ||
        (strcmp(format, "Q") != 0 && strcmp(format, "L") != 0)) {
        PyErr_SetString(PyExc_TypeError, "hashes are an array of u64s");
        return -1;
    }
    self->blocks = self->known.buf;
    self->count = self->known.len / (Py_ssize_t)sizeof *self->blocks;
    return check_unchanged(self);
}

/* Add the drop of those who end here and were not seen deeper. */
static int add_drop(Search *self, Py_ssize_t depth, Holders holders) {
    uint32_t size = words_in(self, holders), last = 0;
    if (size > self->live.size) {
        size = self->live.size;
    }
    uint64_t *ending = self->seen + self->live.size;
    for (uint32_t word = 0; word < size; word++) {
        ending[word] =
            word_of(self, holders, word) & self->live.words[word] & ~self->seen[word];
        self->seen[word] |= ending[word];
        last = ending[word] ? word + 1 : last;
    }
    if (!last) {
        return 0;
    }
    PyObject *mask = mask_int(ending, last);
    PyObject *drop = mask == NULL ? NULL : Py_BuildValue("nN", depth, mask);
    int failed = drop == NULL || PyList_Append(self->drops, drop) < 0;
    Py_XDECREF(drop);
    return failed ? -1 : check_unchanged(self);
}

/* Find the drops between the posts; no live worker holds block `high`. */
static int bisect(Search *self, Py_ssize_t high) {
    Holders beyond = {NOBODY, NOBODY}, found;
    while (self->post_count) {
        Post post = self->posts[--self->post_count];
        Py_ssize_t low = post.at, middle;
        Holders mask = post.holders;
        if (!same(self, mask, beyond)) {
            for (unsigned step = 0; (middle = (low + high) >> 1) != low; step++) {
                if (step % 3 == 0) {
                    fetch_between(self, low, high);
                }
                found = look_up(self, middle);
                if (same(self, found, beyond)) {
                    high = middle;
                } else if (same(self, found, mask)) {
                    low = middle;
                } else {
                    if (push(self, low, mask) < 0) {
                        return -1;
                    }
                    low = middle;
                    mask = found.newer == NOBODY ? (Holders){NO_SET, NO_SET} : found;
                }
            }
            if (add_drop(self, low + 1, mask) < 0) {
                return -1;
            }
        }
        high = low;
        beyond = mask;
    }
    return 0;
}

/* Look at every post up to the first block that nobody alive holds, then between them. */
static int search(Search *self) {
    Py_ssize_t low = 0, last;
    Holders found;
    Py_ssize_t asked = AHEAD;
    if (ask(self, asked) < 0) {
        return -1;
    }
    while (low < self->count) {
        last = self->count - 1;
        fetch(self, low);
        fetch(self, last);
        fetch_between(self, low, last);
        found = look_up(self, low);
        if (!any_live(self, found)) {
            return bisect(self, low);
        }
        if (push(self, low, found) < 0) {
            return -1;
        }
        if (last == low) {
            /* Fewer than were asked for are all there are. */
            if (self->count < asked) {
                break;
            }
            asked = low + 1 + (low >> 2 > AHEAD ? low >> 2 : AHEAD);
            if (ask(self, asked) < 0) {
                return -1;
            }
            last = self->count - 1;
            if (last <= low) {
                break;
            }
        }
        low = last;
    }
    if (self->count <= low && self->post_count) {
        PyErr_SetString(PyExc_ValueError, "a prompt lost blocks while it was searched");
        return -1;
    }
    return bisect(self, low + 1);
}

int search_ready(void) {
    upto_name = PyUnicode_InternFromString("upto");
    return upto_name == NULL ? -1 : 0;
}

PyObject *table_find_drops(Table *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs < 2 || nargs > 3) {
        return PyErr_Format(PyExc_TypeError, "find_drops takes 2 or 3 arguments, not %zd", nargs);
    }
    if (nargs == 3 && args[2] != Py_None && !Py_IS_TYPE(args[2], &table_type)) {
        return PyErr_Format(PyExc_TypeError, "older is a Table or None");
    }
    Search state = {.newer = self, .hashes = args[0]};
    if (nargs == 3 && args[2] != Py_None) {
        state.older = (const Table *)args[2];
    }
    if (mask_read(args[1], &state.live) < 0) {
        return NULL;
    }
    /* Seen bits, and behind them those of one drop. */
    uint64_t stack[STACK_WORDS] = {0};
    state.seen = stack;
    if (state.live.size > STACK_WORDS / 2) {
        state.seen = PyMem_Calloc((size_t)state.live.size * 2, sizeof *state.seen);
    }
    state.drops = PyList_New(0);
    state.changes = self->changes + (state.older ? state.older->changes : 0);
    if (state.seen == NULL) {
        PyErr_NoMemory();
    }
    if (state.seen == NULL || state.drops == NULL || search(&state) < 0) {
        Py_CLEAR(state.drops);
    }
    PyMem_Free(state.posts);
    if (state.seen != stack) {
        PyMem_Free(state.seen);
    }
    PyMem_Free(state.live.words);
    let_go(&state);
    return state.drops;
}
