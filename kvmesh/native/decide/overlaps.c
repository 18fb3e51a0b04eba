/* What each worker has of a prompt: by events, in blocks of every size, and by what is believed. The
 * same as core.index.overlaps.
 */
#include "base/xxh3.h"
#include "decide/decide.h"

#define EXPIRED_AT_ONCE 4096 /* core.index.overlaps */

/* Whether events have told all that there is to know of a slot's worker so deep in the prompt. */
static inline int is_withheld(const Decider *self, const Slots *slots, uint32_t slot,
                              Py_ssize_t depth) {
    uint32_t indexed = slots->indexed != NULL && slot < slots->count ? slots->indexed[slot] : 0;
    return indexed && indexed <= self->withheld_count && depth <= self->withheld[indexed - 1];
}

/* Return what a worker can reuse of so much: whole blocks of its own. */
static inline long long whole_blocks(const Decider *self, const WorkerState *state,
                                     long long depth) {
    long long tokens = depth * self->block_size;
    return state->own_tokens ? (tokens - tokens % state->own_tokens) / self->block_size : depth;
}

/* Note how much a worker has of the prompt, where it is more than it was known to have; -1 with an
 * error set.
 */
static int note_at(Decider *self, const Asked *asked, WorkerState *state, long long depth, int routed,
                   int distrust) {
    int doubted = distrust ? PySet_Contains(self->distrusted, state->worker) : 0;
    TRY(doubted);
    if (!routed && depth > told_at(asked, state)) {
        state->told_in = asked->question;
        state->told = depth;
    }
    if (routed && depth > believed_at(asked, state)) {
        state->routed_in = asked->question;
        state->routed = depth;
    }
    if (!doubted && (state->asked != asked->question || state->overlap < depth)) {
        state->asked = asked->question;
        state->overlap = depth;
    }
    return 0;
}

/* Note a depth at those whom a drop names and the cohort has, but where it is withheld; -1 with an
 * error set. `routed`: decisions told of it, not events.
 */
static int note_drop(Decider *self, const Asked *asked, const Drop *drop, const Slots *slots,
                     int routed, int distrust) {
    for (uint32_t word = drop->start; word < drop->size; word++) {
        for (uint64_t bits = drop->words[word]; bits; bits &= bits - 1) {
            uint32_t slot = 64 * word + (uint32_t)__builtin_ctzll(bits);
            WorkerState *state = slot < slots->count ? slots->states[slot] : NULL;
            if (state == NULL) {
                continue;
            }
            long long depth = routed ? whole_blocks(self, state, drop->depth) : drop->depth;
            if (depth && !(self->withheld_count && is_withheld(self, slots, slot, depth))) {
                TRY(note_at(self, asked, state, depth, routed, distrust));
            }
        }
    }
    return 0;
}

static int note_drops(Decider *self, const Question *question, const Drops *drops, const Slots *slots,
                      int routed, int distrust) {
    for (Py_ssize_t i = 0; i < drops->count; i++) {
        TRY(note_drop(self, &question->asked, drops->drops + i, slots, routed, distrust));
    }
    return 0;
}

/* Note of whom events have told more than a request can be continued from, how much: so deep nothing
 * is believed of them, unless their events do not count. `size`: tokens of the blocks told of.
 * -1 with an error set.
 */
static int withhold(Decider *self, const View *view, int distrust, long long size) {
    uint32_t slots = view->live_words * 64;
    if (slots > self->withheld_room) {
        TRY(RESIZE(self->withheld, slots));
        self->withheld_room = slots;
    }
    if (!self->withheld_count) {
        memset(self->withheld, 0, slots * sizeof *self->withheld);
        self->withheld_count = slots;
    }
    for (Py_ssize_t i = 0; i < self->cut.count; i++) {
        Hit one = self->cut.hits[i];
        PyObject *worker = Py_NewRef(view_name(view, one.slot));
        int doubted = distrust ? PySet_Contains(self->distrusted, worker) : 0;
        Py_DECREF(worker);
        TRY(doubted);
        Py_ssize_t depth = (Py_ssize_t)(one.depth * size / self->block_size);
        if (one.hit < one.depth && !doubted && depth > self->withheld[one.slot]) {
            self->withheld[one.slot] = depth;
        }
    }
    return 0;
}

/* Hash the prompt by blocks of another size; return how many it has, -1 with MemoryError set. */
static Py_ssize_t hash_by(Decider *self, const Question *question, Py_ssize_t size) {
    /* The last token is always computed: see hash_prompt. */
    Py_ssize_t blocks = question->id_count > 0 ? (question->id_count - 1) / size : 0;
    if (blocks > self->other_room) {
        TRY(RESIZE(self->other_hashes, blocks));
        self->other_room = blocks;
    }
    size_t width = (size_t)size * sizeof(uint32_t);
    xxh3_chain(self->other_hashes, question->ids, blocks, width, question->root);
    return blocks;
}

/* Note what workers tell of it in blocks of another size; -1 with an error set. Hashes of blocks of
 * different sizes never meet, so each search finds those of its own size alone.
 */
static int find_other(Decider *self, const Question *question, const Cohort *cohort, long long size,
                      int distrust) {
    const View *view = cohort->view;
    Drops *found = &self->believed_drops;
    Prompt prompt = {.ids = question->ids, .id_count = question->id_count};
    prompt.block_size = (Py_ssize_t)size;
    prompt.count = hash_by(self, question, prompt.block_size);
    TRY(prompt.count);
    prompt.known = self->other_hashes;
    TRY(view_search(view, prompt.known, prompt.count, found));
    if (view->ends.rule_count) {
        TRY(ends_cut(&view->ends, &prompt, view->live_words, found, &self->cut));
        TRY_IF(self->cut.count, withhold(self, view, distrust, size));
    }
    for (Py_ssize_t i = 0; i < found->count; i++) {
        found->drops[i].depth = (Py_ssize_t)(found->drops[i].depth * size / self->block_size);
    }
    return note_drops(self, question, found, &cohort->indexed, 0, distrust);
}

/* Cut what a search found to where hits of grouped workers end; -1 with an error set. */
static int cut_indexed(Decider *self, const Question *question, const View *view, int distrust) {
    Prompt prompt = {
        .known = question->hashes,
        .count = question->blocks,
        .ids = question->ids,
        .id_count = question->id_count,
        .block_size = (Py_ssize_t)self->block_size,
    };
    TRY(ends_cut(&view->ends, &prompt, view->live_words, &self->event_drops, &self->cut));
    return self->cut.count ? withhold(self, view, distrust, self->block_size) : 0;
}

/* Note what engines have of the prompt in the slot that they would take for it. */
static void expect_slots(const Decider *self, const Question *question, const Approx *believed,
                         const Slots *slots) {
    for (Py_ssize_t i = 0; i < believed->slotted_count; i++) {
        const Leases *leases = believed->slotted[i];
        WorkerState *state = leases->slot < slots->count ? slots->states[leases->slot] : NULL;
        if (state == NULL || state->routed_in != question->asked.question ||
            state->overlap != state->routed) {
            continue;
        }
        state->overlap = state->routed = approx_expect(believed, leases, question->hashes,
                                                       question->blocks, self->block_size);
    }
}

/* Note how much of the prompt is believed cached at whom; -1 with an error set. */
static int find_believed(Decider *self, const Question *question, Approx *believed, const Slots *slots,
                         double now) {
    TRY_IF(believed->next_end <= now, approx_expire(believed, now, EXPIRED_AT_ONCE));
    TRY(approx_find(believed, question->hashes, question->blocks, &self->believed_drops));
    TRY(note_drops(self, question, &self->believed_drops, slots, 1, 0));
    expect_slots(self, question, believed, slots);
    return 0;
}

int find_overlaps(Decider *self, Question *question, const Cohort *cohort, double now) {
    question->asked.question = next_question();
    question->prepared = 0;
    self->event_drops.count = 0;
    self->withheld_count = 0;
    if (!self->by->uses_caches) {
        return 0;
    }
    if (cohort->view != NULL) {
        int distrust = PySet_GET_SIZE(self->distrusted) > 0;
        for (int i = 0; question->ids != NULL && i < self->other_count; i++) {
            TRY(find_other(self, question, cohort, self->others[i], distrust));
        }
        if (view_search(cohort->view, question->hashes, question->blocks, &self->event_drops) < 0 ||
            (cohort->view->ends.rule_count &&
             cut_indexed(self, question, cohort->view, distrust) < 0) ||
            note_drops(self, question, &self->event_drops, &cohort->indexed, 0, distrust) < 0) {
            return -1;
        }
    }
    for (int i = 0; i < BELIEFS; i++) {
        TRY_IF(self->believed[i] != NULL, find_believed(self, question, self->believed[i],
                                                        cohort->believed + i, now));
    }
    return 0;
}
