/* Where along a prompt workers drop out: what `kvmesh.core.index.search.find_drops` does.
 *
 * The look-ups are the same ones in the same order, so that answers are equal even where a worker's
 * stream broke its promise. Each is a cache miss of 0.3 us in a large table: those that
 * three halvings may need are fetched at once.
 */
#include "base/arrays.h"
#include "index/search.h"

#define AHEAD 64
#define NOBODY UINT32_MAX

typedef struct {
    const Table *newer, *older; /* older may be NULL */
    uint64_t changes;           /* of both, when the search began */
    Prompt *prompt;
    const uint64_t *blocks; /* of the prompt, as far as they are known */
    Py_ssize_t count;
    const uint64_t *live;
    uint32_t live_words;
    Drops *found;
} Search;

static uint32_t find_set(const Table *table, uint64_t block) {
    const Entry *entry = shard_find(table->shards + (block & 255), block, mixed(block));
    return entry == NULL ? NO_SET : entry->set;
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
    uint64_t block = self->blocks[at], hash = mixed(block);
    shard_prefetch(self->newer->shards + (block & 255), hash);
    if (self->older != NULL) {
        shard_prefetch(self->older->shards + (block & 255), hash);
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
    for (uint32_t word = 0; word < size && word < self->live_words; word++) {
        if (word_of(self, who, word) & self->live[word]) {
            return 1;
        }
    }
    return 0;
}

static int push(Search *self, Py_ssize_t at, Holders holders) {
    Drops *found = self->found;
    TRY(GROW(found->posts, found->post_count, found->post_room, 64));
    found->posts[found->post_count++] = (Post){at, holders};
    return 0;
}

static uint64_t changes_of(const Search *self) {
    return self->newer->changes + (self->older ? self->older->changes : 0);
}

/* Let the prompt be hashed up to so many blocks. -1 with an error set. */
static int ask(Search *self, Py_ssize_t count) {
    Prompt *prompt = self->prompt;
    if (prompt->more != NULL) {
        if (prompt->more(prompt, count) < 0) {
            return -1;
        }
        /* It may have run someone else's code, and that may have changed the tables. */
        REFUSE(changes_of(self) != self->changes, PyExc_RuntimeError,
               "a table changed while it was searched");
    }
    self->blocks = prompt->known;
    self->count = prompt->count;
    return 0;
}

/* Return room for so many words behind those of the drops so far; NULL with MemoryError set. */
static uint64_t *word_room(Drops *self, uint32_t size) {
    if (self->word_count + size > self->word_room) {
        size_t room = self->word_room * 2 + size;
        const uint64_t *before = self->words;
        TRY_OR_NULL(RESIZE(self->words, room));
        for (Py_ssize_t i = 0; i < self->count; i++) {
            self->drops[i].words = self->words + (self->drops[i].words - before);
        }
        self->word_room = room;
    }
    return self->words + self->word_count;
}

/* Add the drop of those who end here and were not seen deeper. */
static int add_drop(Search *self, Py_ssize_t depth, Holders holders) {
    Drops *found = self->found;
    uint32_t size = words_in(self, holders), start = 0, last = 0;
    if (size > self->live_words) {
        size = self->live_words;
    }
    TRY(GROW(found->drops, found->count, found->room, 64));
    uint64_t *ending = word_room(found, size);
    NEED(ending);
    for (uint32_t word = 0; word < size; word++) {
        ending[word] = word_of(self, holders, word) & self->live[word] & ~found->seen[word];
        found->seen[word] |= ending[word];
        start = ending[word] && !last ? word : start;
        last = ending[word] ? word + 1 : last;
    }
    if (last) {
        found->drops[found->count++] = (Drop){depth, ending, start, last};
        found->word_count += last;
    }
    return 0;
}

/* Find the drops between the posts; no live worker holds block `high`. */
static int bisect(Search *self, Py_ssize_t high) {
    Holders beyond = {NOBODY, NOBODY}, found;
    Drops *drops = self->found;
    while (drops->post_count) {
        Post post = drops->posts[--drops->post_count];
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
                    TRY(push(self, low, mask));
                    low = middle;
                    mask = found.newer == NOBODY ? (Holders){NO_SET, NO_SET} : found;
                }
            }
            TRY(add_drop(self, low + 1, mask));
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
    TRY(ask(self, asked));
    while (low < self->count) {
        last = self->count - 1;
        fetch(self, low);
        fetch(self, last);
        fetch_between(self, low, last);
        found = look_up(self, low);
        if (!any_live(self, found)) {
            return bisect(self, low);
        }
        TRY(push(self, low, found));
        if (last == low) {
            /* Fewer than were asked for are all there are. */
            if (self->count < asked) {
                break;
            }
            asked = low + 1 + (low >> 2 > AHEAD ? low >> 2 : AHEAD);
            TRY(ask(self, asked));
            last = self->count - 1;
            if (last <= low) {
                break;
            }
        }
        low = last;
    }
    REFUSE(self->count <= low && self->found->post_count, PyExc_ValueError,
           "a prompt lost blocks while it was searched");
    return bisect(self, low + 1);
}

/* Make room to note which workers were seen; -1 with MemoryError set. */
static int prepare(Drops *self, uint32_t live_words) {
    self->count = self->post_count = 0;
    self->word_count = 0;
    if (live_words > self->seen_room) {
        TRY(RESIZE(self->seen, live_words));
        self->seen_room = live_words;
    }
    if (live_words) {
        memset(self->seen, 0, live_words * sizeof *self->seen);
    }
    return 0;
}

int table_search_prompt(const Table *newer, const Table *older, Prompt *prompt,
                        const uint64_t *live, uint32_t live_words, Drops *found) {
    Search state = {.newer = newer, .older = older, .prompt = prompt, .live = live,
                    .live_words = live_words, .found = found};
    state.changes = changes_of(&state);
    return prepare(found, live_words) < 0 ? -1 : search(&state);
}

int table_search(const Table *newer, const Table *older, const uint64_t *hashes, Py_ssize_t count,
                 const uint64_t *live, uint32_t live_words, Drops *found) {
    Prompt prompt = {hashes, count, NULL};
    return table_search_prompt(newer, older, &prompt, live, live_words, found);
}

void drops_free(Drops *self) {
    FREE_ALL(self->drops, self->words, self->seen, self->posts);
    memset(self, 0, sizeof *self);
}
