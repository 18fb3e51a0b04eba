/* A stream of events kept: the token ids that pass, and how much text of each kind.
 *
 * The ids of choice 0 are appended to two arrays, its text is counted and hashed. With `strip` each list
 * of ids is replaced by null in what passes: the client gets what it would have got unasked. Read are
 * events of one line. An event that is malformed passes as it is, and the ids are lost; so they are
 * with an event of output without ids. From the first CR or overlong event on nothing is read.
 *
 * With `marking` each event of choices leaves marks, from which `core/chat/stream_marks.py` finds what
 * had passed behind any of them. One event of data that is not read ends them: no count is right then.
 */
#define _GNU_SOURCE
#include "wire/keep.h"
#include "base/shell.h"
#include "wire/sse.h"
#include <string.h>

static const char null_text[] = "null";

static void lose(Keeper *self, char why) {
    if (self->lost == LOST_NOT) {
        self->lost = why;
    }
    RAW_FREE_ALL(self->prompt.items, self->tokens.items, self->packed);
    self->prompt = self->tokens = (U32s){NULL, 0, 0};
    self->packed = NULL;
    self->packed_size = 0;
}

static Py_ssize_t packed_size(uint32_t id) {
    Py_ssize_t size = 1;
    while (id >>= 7) {
        size++;
    }
    return size;
}

/* Pack the prompt's ids, which are whole; -1 with MemoryError set. */
static int pack_prompt(Keeper *self) {
    U32s *ids = &self->prompt;
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < ids->count; i++) {
        size += packed_size(ids->items[i]);
    }
    uint8_t *to = size == 0 ? NULL : PyMem_RawMalloc((size_t)size);
    if (to == NULL) {
        return size == 0 ? 0 : no_memory();
    }
    self->packed = to;
    self->packed_size = size;
    for (Py_ssize_t i = 0; i < ids->count; i++) {
        uint32_t id = ids->items[i];
        for (; id > 127; id >>= 7) {
            *to++ = (uint8_t)(id | 128);
        }
        *to++ = (uint8_t)id;
    }
    PyMem_RawFree(ids->items);
    ids->items = NULL;
    ids->room = 0;
    return 0;
}

/* Return the prompt's ids as bytes, 4 each. */
static PyObject *unpacked(const Keeper *self) {
    Py_ssize_t count = self->packed == NULL ? 0 : self->prompt.count;
    PyObject *made = PyBytes_FromStringAndSize(NULL, 4 * count);
    const uint8_t *at = self->packed;
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        uint32_t id = 0;
        for (int bits = 0;; bits += 7) {
            id |= (uint32_t)(*at & 127) << bits;
            if (*at++ < 128) {
                break;
            }
        }
        memcpy(PyBytes_AS_STRING(made) + 4 * i, &id, sizeof id);
    }
    return made;
}

static void stop_marking(Keeper *self) {
    self->marking = 0;
    RAW_FREE_ALL(self->marks.items);
    self->marks = (U32s){NULL, 0, 0};
}

enum { MARK_CALLS = TOLD_KINDS, MARK_NOTHING, MARK_MORE = 8, MARK_FINISHED = 16 };
enum { MOST_MARK_BYTES = 4 }; /* as many of marks as of ids, times this */

/* How far a stream has come. */
typedef struct {
    Py_ssize_t told[MARK_NOTHING], ids;
} Reach;

static Reach reach_of(const Keeper *self) {
    Reach reach = {.ids = self->tokens.count};
    for (int kind = 0; kind < TOLD_KINDS; kind++) {
        reach.told[kind] = self->told[kind].size;
    }
    reach.told[MARK_CALLS] = self->tool_calls;
    return reach;
}

static uint32_t take_most(Py_ssize_t *left, Py_ssize_t most) {
    Py_ssize_t taken = *left < 0 ? 0 : *left > most ? most : *left;
    *left = *left < 0 ? 0 : *left - taken;
    return (uint32_t)taken;
}

/* Note what an event has added: which text (or tool calls, or nothing) and flags in 8 bits, ids in 8,
 * bytes of that text (or calls) in 16, then 32 bits of the text's hash. One mark does for most; with
 * MARK_MORE the next is of the same event.
 */
static int mark_event(Keeper *self, const Reach *before) {
    Reach left = reach_of(self);
    left.ids -= before->ids;
    for (int kind = 0; kind < MARK_NOTHING; kind++) {
        left.told[kind] -= before->told[kind];
    }
    for (int kind = 0;;) {
        while (kind < MARK_NOTHING && left.told[kind] == 0) {
            kind++;
        }
        uint32_t hash = kind < TOLD_KINDS ? (uint32_t)self->told[kind].hash : 0;
        uint32_t mark = (uint32_t)kind | take_most(&left.ids, UINT8_MAX) << 8;
        mark |= kind < MARK_NOTHING ? take_most(&left.told[kind], UINT16_MAX) << 16 : 0;
        int more = left.ids > 0;
        for (int other = kind; other < MARK_NOTHING; other++) {
            more |= left.told[other] > 0;
        }
        mark |= (more ? MARK_MORE : 0) | (self->finished ? MARK_FINISHED : 0);
        TRY(push_u32(&self->marks, mark));
        TRY(push_u32(&self->marks, hash));
        if (!more) {
            break;
        }
    }
    if (self->marks.count > self->most_bytes / 4 * MOST_MARK_BYTES) {
        stop_marking(self);
    }
    return 0;
}

/* Append a list of ids; -1 with MemoryError set. */
static int keep_ids(Keeper *self, const Span *list, U32s *to) {
    int fitted = self->lost != LOST_NOT ? 1 : fold_ids(self, list, to);
    if (fitted == 0) {
        lose(self, LOST_TOO_LONG);
    }
    return fitted < 0 ? -1 : 0;
}

/* Take what an event says of choice 0. */
static int keep_part(Keeper *self, const ChoiceDelta *part, const Span *prompt) {
    Py_ssize_t calls = self->tool_calls, told = -self->told[TOLD_ARGUMENTS].size;
    if (part->calls.at != NULL) {
        fold_calls(self, &part->calls);
    }
    told += self->told[TOLD_ARGUMENTS].size;
    for (int kind = 0; kind < TOLD_ARGUMENTS; kind++) {
        add_text(&self->told[kind], &part->texts[kind]);
        told += part->texts[kind].end - part->texts[kind].at;
    }
    self->finished |= part->finished;
    if (prompt->at != NULL) {
        if (self->prompted) {
            lose(self, LOST_MALFORMED);
        }
        self->prompted = 1;
        TRY(keep_ids(self, prompt, &self->prompt));
        TRY(pack_prompt(self));
    }
    if (part->ids.at != NULL) {
        return keep_ids(self, &part->ids, &self->tokens);
    }
    if (told > 0 || self->tool_calls > calls) {
        lose(self, LOST_NO_IDS);
    }
    return 0;
}

static int keep_event(Keeper *self, const char *piece, const char *at, const char *end) {
    Said said;
    int odd = scan_output(self, piece, at + TEXT_LENGTH("data: "), end, &said);
    if (odd != 0) {
        if (odd > 0) {
            lose(self, LOST_MALFORMED);
            stop_marking(self);
        }
        return odd < 0 ? -1 : 0;
    }
    Reach before = reach_of(self);
    self->choices = said.choices > self->choices ? said.choices : self->choices;
    if (said.has_first) {
        const Span *prompt = said.prompt.at != NULL ? &said.prompt : &said.first.prompt;
        TRY(keep_part(self, &said.first, prompt));
    }
    return self->marking && said.has_choices ? mark_event(self, &before) : 0;
}

/* Tell whether an event that is not read has any data but `[DONE]`. */
static int has_data(const char *at, const char *end) {
    while (at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        line = line == NULL ? end : line;
        if (line - at >= 5 && memcmp(at, "data:", 5) == 0) {
            const char *value = at + 5, *last = line;
            while (value < last && *value == ' ') {
                value++;
            }
            while (last > value && last[-1] == ' ') {
                last--;
            }
            int is_done = last - value == 6 && memcmp(value, "[DONE]", 6) == 0;
            if (value < last && !is_done) {
                return 1;
            }
        }
        at = line + 1;
    }
    return 0;
}

/* Read no more: what passes from here on is passed as it is. */
static int stop(Keeper *self, char why) {
    lose(self, why);
    stop_marking(self);
    self->stopped = 1;
    return 0;
}

/* Read the whole events of a part of a piece. */
static int read_events(Keeper *self, const char *piece, const char *at, const char *end) {
    while (at < end && !self->stopped) {
        if (*at == '\n' || *at == '\r') {
            at++;
            continue;
        }
        size_t left = (size_t)(end - at);
        const char *line = memchr(at, '\n', left);
        int one = line != NULL && line + 1 < end && line[1] == '\n';
        const char *blank = one ? line : memmem(at, left, "\n\n", 2);
        const char *read = blank == NULL ? end : blank;
        if (memchr(at, '\r', (size_t)(read - at)) != NULL) {
            return stop(self, LOST_MALFORMED);
        }
        if (blank == NULL || blank - at >= self->most_held) {
            return stop(self, LOST_TOO_LONG);
        }
        if (one && blank - at > 6 && memcmp(at, "data: {", 7) == 0) {
            TRY(keep_event(self, piece, at, blank));
        } else if (has_data(at, blank)) {
            lose(self, LOST_NO_IDS);
            stop_marking(self);
        }
        at = blank + 2;
    }
    return 0;
}

/* Return how many bytes more the parts of a piece have, from a cut on, that begin before its `end`. */
static Py_ssize_t added_by(const Keeper *self, Py_ssize_t *cut, Py_ssize_t end) {
    Py_ssize_t added = 0;
    for (; *cut < self->count && self->cuts[*cut].at < end; ++*cut) {
        added += TEXT_LENGTH("null") - (self->cuts[*cut].end - self->cuts[*cut].at);
    }
    return added;
}

static char *put(char *to, const char *from, Py_ssize_t size) {
    memcpy(to, from, (size_t)size);
    return to + size;
}

/* Copy bytes `at` to `end` of a piece with its cuts replaced; return behind the copy. */
static char *put_cut(const Keeper *self, char *to, const char *piece, Py_ssize_t at, Py_ssize_t end,
                     Py_ssize_t *cut) {
    for (; *cut < self->count && self->cuts[*cut].at < end; ++*cut) {
        to = put(to, piece + at, self->cuts[*cut].at - at);
        to = put(to, null_text, TEXT_LENGTH("null"));
        at = self->cuts[*cut].end;
    }
    return put(to, piece + at, end - at);
}

PyObject *keeper_pass(Keeper *self, PyObject *passed) {
    const char *piece = PyBytes_AS_STRING(passed);
    Py_ssize_t size = PyBytes_GET_SIZE(passed), cut = 0;
    self->count = 0;
    if (read_events(self, piece, piece, piece + size) < 0) {
        Py_DECREF(passed);
        return NULL;
    }
    if (self->count == 0) {
        return passed;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, size + added_by(self, &cut, size));
    if (made != NULL) {
        cut = 0;
        put_cut(self, PyBytes_AS_STRING(made), piece, 0, size, &cut);
    }
    Py_DECREF(passed);
    return made;
}

/* Go to the next of whole chunks; return its size, 0 at their end. */
static Py_ssize_t next_chunk(const char **at, const char *end, const char **content) {
    Py_ssize_t size = *at < end ? chunk_size(*at, end, content) : 0;
    if (size > 0) {
        *at = *content + size + 2;
    }
    return size;
}

static int hex_digits(Py_ssize_t size) {
    int digits = 1;
    while (size >>= 4) {
        digits++;
    }
    return digits;
}

static char *put_hex(char *to, Py_ssize_t size) {
    static const char letters[] = "0123456789abcdef";
    for (int digits = hex_digits(size); digits-- > 0;) {
        *to++ = letters[size >> 4 * digits & 15];
    }
    return put(to, "\r\n", 2);
}

/* Return chunks with their cuts replaced, those that have one behind a new size line. */
static PyObject *cut_chunks(Keeper *self, const char *piece, Py_ssize_t whole) {
    const char *at = piece, *end = piece + whole, *content = piece;
    Py_ssize_t size, cut = 0, total = whole;
    for (const char *line = at; (size = next_chunk(&at, end, &content)) > 0; line = at) {
        Py_ssize_t before = cut, added = added_by(self, &cut, content + size - piece);
        if (cut > before) {
            total += added + hex_digits(size + added) + 2 - (content - line);
        }
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, total);
    NEED_OR_NULL(made);
    char *to = PyBytes_AS_STRING(made);
    cut = 0;
    at = piece;
    const char *line = at;
    for (; (size = next_chunk(&at, end, &content)) > 0; line = at) {
        Py_ssize_t ahead = cut, added = added_by(self, &ahead, content + size - piece);
        to = ahead > cut ? put_hex(to, size + added) : put(to, line, content - line);
        to = put_cut(self, to, piece, content - piece, content + size - piece, &cut);
        to = put(to, "\r\n", 2);
    }
    put(to, line, end - line);
    return made;
}

PyObject *keeper_pass_chunks(Keeper *self, PyObject *chunks) {
    const char *piece = PyBytes_AS_STRING(chunks), *at = piece, *content = piece;
    const char *end = piece + PyBytes_GET_SIZE(chunks);
    self->count = 0;
    for (Py_ssize_t size; (size = next_chunk(&at, end, &content)) > 0;) {
        TRY_OR_NULL(read_events(self, piece, content, content + size));
    }
    return self->count == 0 ? Py_NewRef(chunks) : cut_chunks(self, piece, end - piece);
}

PyObject *keeper_tell(const Keeper *self, PyObject *make) {
    static const char *const losses[] = {"", "too long", "malformed", "no ids"};
    const Told *told = self->told;
    return PyObject_CallFunction(
        make, "Ny#nKnKnKnnOsy#", unpacked(self),
        self->tokens.items == NULL ? "" : (const char *)self->tokens.items, self->tokens.count * 4,
        told[TOLD_CONTENT].size, (unsigned long long)told[TOLD_CONTENT].hash,
        told[TOLD_REASONING].size, (unsigned long long)told[TOLD_REASONING].hash,
        told[TOLD_ARGUMENTS].size, (unsigned long long)told[TOLD_ARGUMENTS].hash,
        self->tool_calls, self->choices, self->finished ? Py_True : Py_False, losses[(int)self->lost],
        self->marks.items == NULL ? "" : (const char *)self->marks.items, self->marks.count * 4);
}

Keeper *keeper_new(Py_ssize_t most_bytes, int strip, int marking, Py_ssize_t most_held) {
    Keeper *self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL) {
        no_memory();
        return NULL;
    }
    self->most_bytes = most_bytes;
    self->most_held = most_held;
    self->strip = (char)strip;
    self->marking = (char)marking;
    return self;
}

void keeper_free(Keeper *self) {
    if (self != NULL) {
        RAW_FREE_ALL(self->prompt.items, self->tokens.items, self->packed, self->marks.items);
        FREE_ALL(self->cuts, self->last.bytes, self);
    }
}

Py_ssize_t keeper_size(const Keeper *self) {
    Py_ssize_t words = self->prompt.room + self->tokens.room + self->marks.room;
    return (Py_ssize_t)sizeof *self + 4 * words + self->packed_size +
           (Py_ssize_t)sizeof *self->cuts * self->room + self->last.room;
}

static PyObject *hash_text(PyObject *Py_UNUSED(module), ARGUMENTS) {
    uint64_t state;
    PyObject *text;
    TRY_OR_NULL(READ_PLACED("text_hash", "KS", "state text", &state, &text));
    const char *at = PyBytes_AS_STRING(text);
    return PyLong_FromUnsignedLongLong(text_hash(state, at, at + PyBytes_GET_SIZE(text)));
}

PyMethodDef native_keep_methods[] = {
    METHOD_FASTCALL("text_hash", hash_text),
    {NULL, NULL, 0, NULL},
};
