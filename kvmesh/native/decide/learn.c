/* An answer of a worker without events tells what was cached of its prompt. */
#include "decide/decide.h"

/* Return so many tokens as blocks of the router's count of a prompt, whatever the engine's count is. */
static long long blocks_of(const Placed *placed, long long tokens, long long counted) {
    double share = counted > 0 ? (double)tokens / (double)counted : 0.0;
    double own = share * (double)placed->prompt_tokens / (double)placed->record->block_size;
    return own < (double)MOST_TOKENS ? (long long)own : MOST_TOKENS;
}

/* Return the tokens behind a prompt's blocks once it was answered, an answer's last one is not kept. */
static long long tail_of(const Placed *placed, long long output) {
    long long rest = placed->prompt_tokens - Py_SIZE(placed->taught) * placed->record->block_size;
    return rest + (output > 0 ? output - 1 : 0);
}

/* learn(placed, prompt_tokens, cached_tokens, output_tokens, now): counts of the engine; once, of what
 * `teaches`
 */
PyObject *decider_learn(Decider *self, PyObject *const *args, Py_ssize_t nargs) {
    long long counted, cached, output;
    REFUSE_OR_NULL(nargs != 5 || !Py_IS_TYPE(args[0], &placed_type), PyExc_TypeError,
                   "learn takes a Placed, three counts and a time");
    Placed *placed = (Placed *)args[0];
    double now = PyFloat_AsDouble(args[4]);
    if (read_amount(args[1], &counted) < 0 || read_amount(args[2], &cached) < 0 ||
        read_amount(args[3], &output) < 0 || PyErr_Occurred()) {
        return NULL;
    }
    Hashed *taught = placed->taught;
    REFUSE_OR_NULL(taught == NULL, PyExc_ValueError, "what is cached there is told by events");
    PyObject *worker = placed->record->worker;
    /* Of another count of tokens a tenth of a prompt says nothing. */
    Lesson lesson = {
        .hashes = taught->at,
        .count = Py_SIZE(taught),
        .predicted = placed->record->chosen.overlap_blocks,
        .cached = blocks_of(placed, cached, counted),
        .slack = counted == placed->prompt_tokens ? 1 : 1 + Py_SIZE(taught) / 10,
        .output = output > 0 ? 1 + blocks_of(placed, output, counted) : 0,
        .before = placed->before,
        .tail = tail_of(placed, output),
        .block_size = placed->record->block_size,
        .now = now,
        .ttl_s = self->approx_ttl_s,
    };
    lesson.cached = lesson.cached < 0 ? 0 : lesson.cached < lesson.count ? lesson.cached : lesson.count;
    int failed = approx_learn(self->believed[ROUTED], worker, &lesson) < 0;
    if (!failed && self->believed[HEARD] != NULL && lesson.predicted - lesson.cached > lesson.slack) {
        failed = approx_forget_behind(self->believed[HEARD], worker, taught->at, lesson.count,
                                      lesson.cached) < 0;
    }
    Py_CLEAR(placed->taught);
    return none_or_null(failed ? -1 : 0);
}
