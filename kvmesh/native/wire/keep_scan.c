/* The JSON of an event of output, read forward once: where its token ids and its texts are.
 *
 * Keys count at their places alone, so no text of a string is taken for one. Objects and lists on the
 * way to these places are read strictly; what is skipped has to have its strings and brackets closed.
 * Nothing is decoded but numbers: texts are the bytes between their quotes.
 */
#include "base/shell.h"
#include "wire/keep.h"
#include "wire/sse.h"
#include <string.h>

#define MOST_DIGITS 9 /* of an index */
#define LONGEST_LIKENESS 2048

typedef struct {
    const char *at, *end, *piece;
    Keeper *keeper; /* whose cuts are noted, or NULL */
    int no_memory;
} Scan;

static inline uint64_t has_zero(uint64_t bytes) {
    return (bytes - 0x0101010101010101U) & ~bytes & 0x8080808080808080U;
}

/* Return the quote that ends a string, NULL for none; 8 bytes at a time. */
static const char *string_end(const char *at, const char *end) {
    while (end - at >= 8) {
        uint64_t bytes;
        memcpy(&bytes, at, sizeof bytes);
        uint64_t found = has_zero(bytes ^ 0x2222222222222222U) | has_zero(bytes ^ 0x5c5c5c5c5c5c5c5cU);
        if (found == 0) {
            at += 8;
            continue;
        }
        at += __builtin_ctzll(found) / 8;
        if (*at == '"') {
            return at;
        }
        at += 2;
    }
    for (; at < end; at++) {
        if (*at == '"') {
            return at;
        }
        at += *at == '\\';
    }
    return NULL;
}

/* Return the next byte that is no blank, 0 at the end. */
static inline char peek(Scan *self) {
    while (self->at < self->end && (*self->at == ' ' || *self->at == '\t')) {
        self->at++;
    }
    return self->at < self->end ? *self->at : 0;
}

static inline int take_mark(Scan *self, char mark) {
    int found = peek(self) == mark;
    self->at += found;
    return found;
}

static int read_string(Scan *self, Span *into) {
    if (!take_mark(self, '"')) {
        return -1;
    }
    const char *end = string_end(self->at, self->end);
    NEED(end);
    *into = (Span){self->at, end};
    self->at = end + 1;
    return 0;
}

static inline int is_word(const Span *self, const char *word, Py_ssize_t size) {
    return self->end - self->at == size && memcmp(self->at, word, (size_t)size) == 0;
}
#define IS(span, word) is_word(span, word, TEXT_LENGTH(word))

static inline int ends_atom(char byte) {
    return byte == ',' || byte == '}' || byte == ']' || byte == ' ' || byte == '\t' || byte == '"' ||
           byte == '{' || byte == '[' || byte == ':';
}

/* Read a number or a word. */
static int read_atom(Scan *self, Span *into) {
    peek(self);
    into->at = self->at;
    while (self->at < self->end && !ends_atom(*self->at)) {
        self->at++;
    }
    into->end = self->at;
    return into->end == into->at ? -1 : 0;
}

static int skip_value(Scan *self) {
    Span skipped;
    char first = peek(self);
    if (first != '{' && first != '[') {
        return first == '"' ? read_string(self, &skipped) : read_atom(self, &skipped);
    }
    for (Py_ssize_t depth = 0;;) {
        if (self->at == self->end) {
            return -1;
        }
        char byte = *self->at;
        if (byte == '"') {
            TRY(read_string(self, &skipped));
            continue;
        }
        self->at++;
        depth += byte == '{' || byte == '[';
        if ((byte == '}' || byte == ']') && --depth == 0) {
            return 0;
        }
    }
}

/* Go to the next member of an object, or item of a list: 1; 0 at its end, -1 for neither. */
static int next_item(Scan *self, int is_first) {
    if (take_mark(self, ']')) {
        return 0;
    }
    return is_first || take_mark(self, ',') ? 1 : -1;
}

static int next_member(Scan *self, int is_first, Span *key) {
    if (take_mark(self, '}')) {
        return 0;
    }
    if (!is_first && !take_mark(self, ',')) {
        return -1;
    }
    return read_string(self, key) == 0 && take_mark(self, ':') ? 1 : -1;
}

/* Read a text; anything else is none. */
static int read_text_of(Scan *self, Span *into) {
    return peek(self) == '"' ? read_string(self, into) : skip_value(self);
}

static int read_id(Scan *self, uint32_t *into) {
    uint64_t number = 0;
    peek(self);
    const char *from = self->at;
    while (self->at < self->end && *self->at >= '0' && *self->at <= '9' && number <= UINT32_MAX) {
        number = number * 10 + (uint64_t)(*self->at++ - '0');
    }
    *into = (uint32_t)number;
    int is_padded = self->at - from > 1 && *from == '0';
    return self->at == from || is_padded || number > UINT32_MAX ? -1 : 0;
}

static int note_cut(Scan *self, const Span *list) {
    Keeper *keeper = self->keeper;
    if (keeper == NULL || !keeper->strip) {
        return 0;
    }
    self->no_memory = GROW(keeper->cuts, keeper->count, keeper->room, 2) < 0;
    RETURN_IF(self->no_memory, -1);
    keeper->cuts[keeper->count++] = (IdList){list->at - self->piece, list->end - self->piece};
    return 0;
}

/* Read a list of ids, or null. */
static int read_ids(Scan *self, Span *into) {
    if (peek(self) != '[') {
        Span word;
        return read_atom(self, &word) == 0 && IS(&word, "null") ? 0 : -1;
    }
    Span list = {self->at++, NULL};
    int more;
    for (int is_first = 1; (more = next_item(self, is_first)) > 0; is_first = 0) {
        uint32_t id;
        TRY(read_id(self, &id));
    }
    list.end = self->at;
    *into = list;
    return more < 0 ? -1 : note_cut(self, &list);
}

static int read_index(Scan *self, Py_ssize_t *into) {
    Span word;
    if (read_atom(self, &word) < 0 || word.end - word.at > MOST_DIGITS) {
        return -1;
    }
    *into = 0;
    for (; word.at < word.end; word.at++) {
        if (*word.at < '0' || *word.at > '9') {
            return -1;
        }
        *into = *into * 10 + (*word.at - '0');
    }
    return 0;
}

/* Go through one tool call; fold it into a keeper unless that is NULL. */
static int read_call(Scan *self, Keeper *to) {
    Span key, value;
    int more, deeper;
    self->at++;
    for (int is_first = 1; (more = next_member(self, is_first, &key)) > 0; is_first = 0) {
        value.at = NULL;
        if (IS(&key, "function") && peek(self) == '{') {
            self->at++;
            for (int first = 1; (deeper = next_member(self, first, &key)) > 0; first = 0) {
                value.at = NULL;
                if ((IS(&key, "arguments") ? read_text_of(self, &value) : skip_value(self)) < 0) {
                    return -1;
                }
                if (to != NULL) {
                    add_text(&to->told[TOLD_ARGUMENTS], &value);
                }
            }
            TRY(deeper);
        } else if ((IS(&key, "id") ? read_text_of(self, &value) : skip_value(self)) < 0) {
            return -1;
        } else if (to != NULL) {
            to->tool_calls += value.at != NULL;
        }
    }
    return more;
}

static int read_calls(Scan *self, Keeper *to) {
    int more;
    self->at++;
    for (int is_first = 1; (more = next_item(self, is_first)) > 0; is_first = 0) {
        if ((peek(self) == '{' ? read_call(self, to) : skip_value(self)) < 0) {
            return -1;
        }
    }
    return more;
}

static int read_delta(Scan *self, ChoiceDelta *into) {
    Span key;
    int more;
    self->at++;
    for (int is_first = 1; (more = next_member(self, is_first, &key)) > 0; is_first = 0) {
        int failed;
        if (IS(&key, "content")) {
            failed = read_text_of(self, &into->texts[TOLD_CONTENT]);
        } else if (IS(&key, "reasoning") || IS(&key, "reasoning_content")) {
            failed = read_text_of(self, &into->texts[TOLD_REASONING]);
        } else if (IS(&key, "tool_calls") && peek(self) == '[') {
            into->calls.at = self->at;
            failed = read_calls(self, NULL);
            into->calls.end = self->at;
        } else {
            failed = skip_value(self);
        }
        TRY(failed);
    }
    return more;
}

static int read_reason(Scan *self, ChoiceDelta *into) {
    Span value = {NULL, NULL};
    peek(self);
    value.at = self->at;
    int failed = skip_value(self);
    value.end = self->at;
    into->finished = !IS(&value, "null");
    return failed;
}

static int read_member(Scan *self, const Span *key, ChoiceDelta *into) {
    switch (key->end - key->at) {
    case TEXT_LENGTH("text"):
        return IS(key, "text") ? read_text_of(self, &into->texts[TOLD_CONTENT]) : skip_value(self);
    case TEXT_LENGTH("index"):
        if (IS(key, "index")) {
            return read_index(self, &into->index);
        }
        return IS(key, "delta") && peek(self) == '{' ? read_delta(self, into) : skip_value(self);
    case TEXT_LENGTH("token_ids"):
        return IS(key, "token_ids") ? read_ids(self, &into->ids) : skip_value(self);
    case TEXT_LENGTH("finish_reason"):
        return IS(key, "finish_reason") ? read_reason(self, into) : skip_value(self);
    case TEXT_LENGTH("prompt_token_ids"):
        return IS(key, "prompt_token_ids") ? read_ids(self, &into->prompt) : skip_value(self);
    default:
        return skip_value(self);
    }
}

static int read_choice(Scan *self, Said *said) {
    ChoiceDelta part = {.index = 0};
    Span key;
    int more;
    self->at++;
    for (int is_first = 1; (more = next_member(self, is_first, &key)) > 0; is_first = 0) {
        TRY(read_member(self, &key, &part));
    }
    if (more < 0 || (part.index == 0 && said->has_first)) {
        return -1;
    }
    said->choices = part.index >= said->choices ? part.index + 1 : said->choices;
    if (part.index == 0) {
        said->first = part;
        said->has_first = 1;
    }
    return 0;
}

static int read_choices(Scan *self, Said *said) {
    int more;
    self->at++;
    for (int is_first = 1; (more = next_item(self, is_first)) > 0; is_first = 0) {
        if ((peek(self) == '{' ? read_choice(self, said) : skip_value(self)) < 0) {
            return -1;
        }
    }
    return more;
}

static int read_event(Scan *self, Said *said) {
    Span key;
    int more = -1;
    if (!take_mark(self, '{')) {
        return -1;
    }
    for (int is_first = 1; (more = next_member(self, is_first, &key)) > 0; is_first = 0) {
        int failed;
        if (IS(&key, "choices") && peek(self) == '[') {
            failed = read_choices(self, said);
            said->has_choices = 1;
        } else if (IS(&key, "prompt_token_ids")) {
            failed = read_ids(self, &said->prompt);
        } else {
            failed = skip_value(self);
        }
        TRY(failed);
    }
    return more == 0 && peek(self) == 0 && self->at == self->end ? 0 : -1;
}

static int goes_on(const char **at, const char *end, const char *with, Py_ssize_t size) {
    int same = end - *at >= size && memcmp(*at, with, (size_t)size) == 0;
    *at += same ? size : 0;
    return same;
}

/* Read an event that is like the last but for its text and its ids; 0: it is not. Whatever stands between
 * the same bytes is a text up to its quote and a list up to its bracket, as in a scan of all.
 */
static int read_alike(Scan *self, Said *said) {
    const Likeness *last = &self->keeper->last;
    const char *rest = last->bytes;
    if (rest == NULL || !goes_on(&self->at, self->end, rest, last->before)) {
        return 0;
    }
    ChoiceDelta *first = &said->first;
    Span text = {self->at, string_end(self->at, self->end)};
    rest += last->before;
    if (text.end == NULL || !goes_on(&text.end, self->end, rest, last->between)) {
        return 0;
    }
    self->at = text.end;
    text.end -= last->between;
    rest += last->between;
    if (last->has_list && (*self->at != '[' || read_ids(self, &first->ids) < 0)) {
        return 0;
    }
    first->texts[(int)last->kind] = text;
    said->has_first = said->has_choices = 1;
    said->choices = 1;
    return goes_on(&self->at, self->end, rest, last->behind) && self->at == self->end;
}

/* Remember an event that says nothing but one text of choice 0, and perhaps its ids, as the last. */
static void note_last(Keeper *self, const char *at, const char *end, const Said *said) {
    const ChoiceDelta *first = &said->first;
    Likeness *last = &self->last;
    int kind = first->texts[TOLD_CONTENT].at != NULL ? TOLD_CONTENT : TOLD_REASONING;
    const Span *text = &first->texts[kind], *list = &first->ids;
    int is_plain = text->at != NULL && first->texts[TOLD_CONTENT + TOLD_REASONING - kind].at == NULL &&
                   first->calls.at == NULL && first->prompt.at == NULL && said->prompt.at == NULL &&
                   !first->finished && said->choices == 1 && end - at <= LONGEST_LIKENESS &&
                   (list->at == NULL || list->at > text->end);
    if (!is_plain || (end - at > last->room && RESIZE(last->bytes, end - at) < 0)) {
        PyErr_Clear();
        return;
    }
    last->room = end - at > last->room ? end - at : last->room;
    last->kind = (char)kind;
    last->has_list = list->at != NULL;
    const char *middle = list->at == NULL ? end : list->at, *tail = list->at == NULL ? end : list->end;
    last->before = text->at - at;
    last->between = middle - text->end;
    last->behind = end - tail;
    memcpy(last->bytes, at, (size_t)last->before);
    memcpy(last->bytes + last->before, text->end, (size_t)last->between);
    memcpy(last->bytes + last->before + last->between, tail, (size_t)last->behind);
}

int scan_output(Keeper *self, const char *piece, const char *at, const char *end, Said *said) {
    Scan scan = {at, end, piece, self, 0};
    Py_ssize_t before = self->count;
    memset(said, 0, sizeof *said);
    if (read_alike(&scan, said)) {
        return 0;
    }
    self->count = before;
    if (scan.no_memory) {
        return -1;
    }
    memset(said, 0, sizeof *said);
    scan.at = at;
    if (read_event(&scan, said) < 0) {
        self->count = before;
        return scan.no_memory ? -1 : 1;
    }
    if (self->count - before <= (said->first.ids.at != NULL)) {
        note_last(self, at, end, said);
    }
    return 0;
}

void fold_calls(Keeper *self, const Span *calls) {
    Scan scan = {calls->at, calls->end, calls->at, NULL, 0};
    read_calls(&scan, self);
}

int fold_ids(Keeper *self, const Span *list, U32s *to) {
    Scan scan = {list->at + 1, list->end, list->at, NULL, 0};
    for (int is_first = 1; next_item(&scan, is_first) > 0; is_first = 0) {
        uint32_t id;
        read_id(&scan, &id);
        if (self->prompt.count + self->tokens.count >= self->most_bytes / 4) {
            return 0;
        }
        TRY(push_u32(to, id));
    }
    return 1;
}

uint64_t text_hash(uint64_t state, const char *at, const char *end) {
    const uint64_t basis = 0xcbf29ce484222325U, prime = 0x100000001b3U;
    uint64_t hash = state ^ basis;
    for (; at < end; at++) {
        hash = (hash ^ (uint8_t)*at) * prime;
    }
    return hash ^ basis;
}
